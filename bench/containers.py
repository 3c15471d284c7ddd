"""What containers cost, beside the process sandbox on the same machine.

    python bench/containers.py [--rounds 10] [--steps 40] [--base IMAGE] [--no-build]

Three figures:

    start_overhead_s   seconds from handing over an empty job to its end, container minus process, median of pairs
    image_build_s      building the CPU image from wheels that are here, nothing cached in the engine
    training_ratio     tokens per second of the `train` stage at smoke size, container over process, median of pairs

The two of a pair run one after the other, in an order that alternates, so that a busy neighbour disturbs both.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import docker
import pandas as pd
import yaml

import results
from ratchet import params
from ratchet.sandbox.container import ContainerSandbox
from ratchet.sandbox.job import End, Job, Limits
from ratchet.sandbox.process import ProcessSandbox

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "containers"), str(ROOT / "tests/support")]
import build  # noqa: E402  (containers/ holds scripts, no package)
from image_orders import order_of  # noqa: E402

WARM_UP_STEPS = 2
"""The first steps fill caches and allocator."""


def start_overhead(image: str, rounds: int) -> dict[str, Any]:
    """Seconds of an empty job in both sandboxes; the first pair warms up and does not count."""
    sandboxes = {"process": ProcessSandbox(), "container": ContainerSandbox(image)}
    seconds: dict[str, list[float]] = {kind: [] for kind in sandboxes}
    for number in range(rounds + 1):
        for kind in sorted(sandboxes, reverse=bool(number % 2)):
            with tempfile.TemporaryDirectory() as folder:
                here = Path(folder)
                limits = Limits(seconds=60, memory_mb=256)
                job = Job(name="empty", argv=("python", "-c", ""), folder=here, log=here / "log", limits=limits)
                begun = perf_counter()
                with sandboxes[kind].start(job) as running:
                    ended = running.wait()
                seconds[kind].append(perf_counter() - begun)
                assert ended.end is End.DONE, ended
    pairs = zip(seconds["container"][1:], seconds["process"][1:], strict=True)
    return {
        "start_overhead_s": median(container - process for container, process in pairs),
        "start_container_s": median(seconds["container"][1:]),
        "start_process_s": median(seconds["process"][1:]),
    }


def image_build(base: str | None) -> dict[str, Any]:
    """Seconds to build the CPU image anew. A first call brings the wheels, so that no network is measured."""
    order = replace(order_of("cpu", base), tag="ratchet-bench:local", lock=build.CACHE / "bench.lock")
    client = docker.from_env()
    try:
        build.build(order)
        begun = perf_counter()
        image = build.build(replace(order, rebuild=True))
        seconds = perf_counter() - begun
        return {"image_build_s": seconds, "image_mb": round(image.attrs["Size"] / 1e6)}
    finally:
        client.images.remove(order.name, force=True)


def training_ratio(image: str, rounds: int, steps: int) -> dict[str, Any]:
    """Tokens per second of the `train` stage in both; each round trains from the start, in a folder of its own."""
    ratios: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        _make_project(project, steps)
        for stage in ("prepare", "tokenizer", "pack"):
            _run_stage(project, stage, image, "process", "data")
        for number in range(rounds):
            speed = {
                where: _train(project, image, where, f"{where}-{number}")
                for where in sorted(("process", "container"), reverse=bool(number % 2))
            }
            ratios.append(speed["container"] / speed["process"])
    return {"training_ratio": median(ratios), "training_ratios": ratios, "training_steps": steps}


def _make_project(project: Path, steps: int) -> None:
    """The smoke profile, its training cut to `steps`."""
    shutil.copy(ROOT / "constraints.txt", project)
    shutil.copytree(ROOT / "arena", project / "arena")
    smoke = params.merge(params.read_document(ROOT / "params.yaml"), params.read_document(ROOT / "profiles/smoke.yaml"))
    short = {"train": {"horizon": {"unit": "steps", "value": steps}}}
    (project / "params.yaml").write_text(yaml.safe_dump(params.merge(smoke, short)), encoding="utf-8")


def _run_stage(project: Path, stage: str, image: str, where: str, runs: str) -> None:
    mine = {"RATCHET_STAGES_IN": where, "RATCHET_IMAGE": image, "RATCHET_DEVICE": "cpu", "RATCHET_WANDB": "disabled"}
    environment = {**os.environ, **mine, "RATCHET_RUNS": f"runs/{runs}", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-m", f"steps.{stage}"], cwd=project, env=environment, check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip


def _train(project: Path, image: str, where: str, runs: str) -> float:
    """Median tokens per second over the steps of one training."""
    _run_stage(project, "train", image, where, runs)
    table = pd.read_csv(project / "data/train/timing/steps.tsv", sep="\t")
    shutil.rmtree(project / "data/train")
    return float(table["tokens_per_s"].iloc[WARM_UP_STEPS:].median())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=40, help="of the training that is timed")
    parser.add_argument("--base", default="ratchet-debian:bookworm", help="base of the CPU image")
    parser.add_argument("--build", action=argparse.BooleanOptionalAction, default=True, help="time the image's build")
    given = parser.parse_args()
    order = order_of("cpu", given.base)
    build.build(order)
    figures = {
        **start_overhead(order.name, given.rounds),
        **training_ratio(order.name, min(given.rounds, 5), given.steps),
        **(image_build(given.base) if given.build else {}),
        "threads": len(os.sched_getaffinity(0)),
    }
    results.keep("containers", figures)


if __name__ == "__main__":
    main()
