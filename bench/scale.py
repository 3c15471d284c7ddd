"""What research on many machines asks of the Prefect server, the DVC remote and the purse.

    python bench/scale.py [--workers 2] [--idle 40] [--gpu-hour 2.5] [--gb-out 0.09]

A real server, real workers and real flow runs of the deployment `experiment`, whose training is a wait
(tests/support/toy_pool.py); every call of workers and session passes a proxy that counts. Bytes are those that this
session left in the remote; the model of a default experiment is counted from its parameters. What a hundred
experiments cost is arithmetic over the two prices that the command states, in dollars; both are examples, not offers.
Every byte that is sent counts as fetched once.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any
from urllib.request import urlopen

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/support"))

from prefect_server import prefect_server  # pyright: ignore[reportMissingImports]
from ratchet.loops.research.pool import BEATS, POLL_S
from ratchet.settings import Settings
from results import ROOT, keep
from toy_pool import (  # pyright: ignore[reportMissingImports]
    Cable,
    box,
    deploy,
    environment,
    make_pool_project,
    wait_until,
)

LOST_S = Settings.model_fields["experiment_lost_s"].default
QUERY_S = 10
"""What a worker waits between two looks at its pool by default; the toy's look more often."""
TOY_S = 5.0
GPU_EXPERIMENT_S = 330
"""A training of the published 300 s, and its judging, at most a tenth of that."""
BYTES_PER_PARAM = 4
PROBES = 300


def measure(workers: int, idle_s: float) -> dict[str, Any]:
    """Calls and bytes of one session on `workers` machines."""
    folder = Path(tempfile.mkdtemp(prefix="ratchet-scale-"))
    project, remote = make_pool_project(folder / "project")
    with prefect_server(folder / "prefect") as api, ExitStack() as boxes:
        far, near = Cable(api), Cable(api)
        deploy(project, environment(folder / "home", api))
        for number in range(workers):
            boxes.enter_context(box(project, folder / f"box{number}", far.address, TOY_S, query_s=QUERY_S))
        wait_until(lambda: far.requests > 4 * workers, 180)
        time.sleep(idle_s / 4)
        before = far.requests
        time.sleep(idle_s)
        idle = (far.requests - before) / idle_s / workers
        calls, began = far.requests, time.perf_counter()
        command = [sys.executable, "-m", "toy_pool", str(project), str(folder / "out"), str(LOST_S)]
        subprocess.run(command, cwd=project, env=environment(folder / "home", near.address), check=True)
        took = time.perf_counter() - began
        archives = [*remote.glob("experiments/*/*/*.tar")]
        done = len([path for path in archives if path.name.startswith("result")])
        return {
            "workers": workers, "experiments": done, "seconds": round(took, 1),
            "calls_per_s_of_an_idle_worker": round(idle, 3),
            "calls_of_a_worker_per_experiment": round((far.requests - calls - idle * workers * took) / done, 1),
            "calls_of_the_session_per_experiment": round(near.requests / done, 1),
            "calls_of_the_session_per_s": round(near.requests / took, 2),
            "result_bytes": round(median(p.stat().st_size for p in archives if p.name.startswith("result"))),
            "trained_bytes_of_the_toy": round(median(p.stat().st_size for p in archives if p.name == "trained.tar")),
            "server_answers_per_s": round(answers(api), 1),
        }  # fmt: skip


def answers(api: str) -> float:
    """Answers that the server gives one caller in a second, one after the other."""
    began = time.perf_counter()
    for _ in range(PROBES):
        with urlopen(f"{api}/flow_runs/count", data=b"{}") as answer:
            answer.read()
    return PROBES / (time.perf_counter() - began)


def extrapolated(seen: dict[str, Any], workers: int, gpu_hour: float, gb_out: float) -> dict[str, float]:
    """What a hundred experiments, and so many `workers`, each with one at a time, come to."""
    default = json.loads((ROOT / "metrics/train.json").read_text(encoding="utf-8"))
    trained = 1e6 * default["params_m"] * BYTES_PER_PARAM
    per_worker = seen["calls_per_s_of_an_idle_worker"] + seen["calls_of_a_worker_per_experiment"] / GPU_EXPERIMENT_S
    watching = 1 / POLL_S + BEATS / LOST_S
    load = workers * (per_worker + watching + BEATS / LOST_S)
    gigabytes = 100 * (trained + seen["result_bytes"]) / 1e9
    return {
        "workers": workers, "calls_per_s": round(load, 2),
        "share_of_the_server_percent": round(100 * load / seen["server_answers_per_s"], 1),
        "gb_into_the_remote_per_100": round(gigabytes, 2),
        "gpu_hours_per_100": round(100 * GPU_EXPERIMENT_S / 3600, 2),
        "dollars_per_100": round(100 * GPU_EXPERIMENT_S / 3600 * gpu_hour + gigabytes * gb_out, 2),
        "hours_per_100": round(100 / workers * GPU_EXPERIMENT_S / 3600, 3),
    }  # fmt: skip


def main() -> None:
    """Measure and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--idle", type=float, default=40.0, help="seconds that idle workers are listened to")
    parser.add_argument("--gpu-hour", type=float, default=2.5, help="price of an hour of one GPU, dollars")
    parser.add_argument("--gb-out", type=float, default=0.09, help="price of a gigabyte out of the store, dollars")
    asked = parser.parse_args()
    seen = measure(asked.workers, asked.idle)
    prices = {"gpu_hour": asked.gpu_hour, "gb_out": asked.gb_out}
    each = [extrapolated(seen, workers, **prices) for workers in (1, 3, 10, 100)]
    keep("scale", {"measured": seen, "prices": prices, "computed": {str(one["workers"]): one for one in each}})


if __name__ == "__main__":
    main()
