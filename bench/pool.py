"""A research session on a work pool of machines that share nothing but the network, beside the same on one machine.

    sudo .venv/bin/python bench/pool.py [--experiments 4] [--cut 60] [--slow 3] [--lost 75] [--keep FOLDER]

Session and three workers have each a clone and an address of their own (bench/machines.py); the data comes by
`dvc pull` from an S3 store, results go back through it. While they train, the network is cut; then one loses its power
while it trains a candidate and stays dead; one is slow all the time. The trainings are those of the real arena on real
text, at the size of the smoke profile.

The tables must be equal but for what is measured; exit code 1 when they are not. All of it runs on this machine's
cores, so the seconds say what the events cost, and no speed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import boto3

import results
from machines import Machine, Network, check_means, network
from ratchet.core.errors import InfrastructureError, RatchetError
from ratchet.train.progress import read_live

sys.path.insert(0, str(results.ROOT / "tests/support"))
from prefect_server import free_port, prefect_server  # pyright: ignore[reportMissingImports]
from smoke_clone import clone  # pyright: ignore[reportMissingImports]
from toy_artifacts import add_s3_remote, sh  # pyright: ignore[reportMissingImports]
from toy_pool import environment  # pyright: ignore[reportMissingImports]
from toy_session import MEASURED, rows  # pyright: ignore[reportMissingImports]

POOL, BUCKET = "boxes", "outputs"
BOXES = ("one", "slow", "dies")
SIZE = {
    "iterate.parallel": len(BOXES), "iterate.noise_seeds": len(BOXES), "iterate.train.horizon.value": 80,
    "iterate.limits.floor_seconds": 600,  # a candidate's limit is in seconds, of which a slow machine needs more
}  # fmt: skip
BEFORE = ("prepare", "tokenizer", "pack", "train", "evaluate")
SESSION = ("ratchet.cli", "run", "--until", "iterate")
KEYS = {"AWS_ACCESS_KEY_ID": "toy", "AWS_SECRET_ACCESS_KEY": "toy", "AWS_DEFAULT_REGION": "us-east-1"}
PATIENCE_S, SESSION_S = 600.0, 1800.0


def measure(folder: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """One machine, then the pool, in clones of one project below `folder`."""
    with ExitStack() as stack:
        net = stack.enter_context(network())
        api = stack.enter_context(prefect_server(folder / "prefect", net.address))
        store = stack.enter_context(s3_store(folder, net.address))
        project = make_project(folder / "project", store, asked.experiments)
        alone, session, *boxes = (cloned(project, name) for name in ("alone", "session", *BOXES))
        for place in (alone, session):
            python(place, of_a_machine(place, api), "ratchet.cli", "pull", *BEFORE)
        began = time.monotonic()
        python(alone, of_a_machine(alone, api), *SESSION)
        alone_s = time.monotonic() - began
        pool = Pool(net, api, session, dict(zip(BOXES, boxes, strict=True)))
        seen = pool.run(stack, asked)
        return {
            **compared(alone, session), "seconds_alone": round(alone_s, 1), **seen,
            "requests_to_the_store": (folder / "store.log").read_bytes().count(b" HTTP/1."),
        }  # fmt: skip


def make_project(folder: Path, store: str, experiments: int) -> Path:
    """This working tree at toy size with its data made, committed and pushed to a bucket of `store`."""
    told = [f"{name}={value}" for name, value in {**SIZE, "iterate.experiments": experiments}.items()]
    project: Path = clone(folder, told)
    here = of_a_machine(project, "")
    python(project, here, "dvc", "repro", "-q", BEFORE[-1])
    sh(project, "git", "add", "-A")
    add_s3_remote(project, f"s3://{BUCKET}/pool", store)
    python(project, here, "ratchet.cli", "push", *BEFORE)
    return project


class Pool:
    """The session's checkout, the workers' by their names, and the network and the server between them."""

    def __init__(self, net: Network, api: str, session: Path, boxes: Mapping[str, Path]) -> None:
        self.net, self.api, self.session, self.boxes = net, api, session, boxes

    def run(self, stack: ExitStack, asked: argparse.Namespace) -> dict[str, Any]:
        """The session to its end, whatever happens meanwhile; what happened."""
        far = of_a_machine(self.session, self.api, RATCHET_EXECUTOR="pool", RATCHET_EXPERIMENT_LOST_S=str(asked.lost))
        python(self.session, far, "prefect", "work-pool", "create", POOL, "--type", "process")
        python(self.session, far, "flows.experiment", "deploy", POOL)
        machines = {name: stack.enter_context(self.net.machine()) for name in ("session", *BOXES)}
        for name, checkout in self.boxes.items():
            here = of_a_machine(checkout, self.api, PREFECT_WORKER_QUERY_SECONDS="2")
            command = [sys.executable, "-m", "flows.experiment", "work", POOL]
            machines[name].start(command, checkout, here, checkout / ".ratchet/worker.log")
        stack.enter_context(machines["slow"].slow(asked.slow))
        began, log = time.monotonic(), self.session / ".ratchet/session.log"
        going = machines["session"].start([sys.executable, "-m", *SESSION], self.session, far, log)
        events = {**self.cut(going, asked.cut), **self.kill(machines["dies"], going), "slow_factor": asked.slow}
        if going.wait(SESSION_S):
            what = f"the session ended with {going.returncode}: {log.read_text()[-2000:]}"
            raise InfrastructureError("pool", what, f"see {log}, with --keep")
        return {"seconds_pool": round(time.monotonic() - began, 1), "events": events, **self.told()}

    def cut(self, going: subprocess.Popen[bytes], seconds: float) -> dict[str, Any]:
        """Cut the network when two machines have an experiment under way, of which one trains."""
        places = self.boxes.values()
        wait_until(lambda: any(map(training, places)) and sum(map(bool, map(under_way, places))) > 1, going)
        seen = {"cut_s": seconds, "busy_at_the_cut": [name for name, box in self.boxes.items() if under_way(box)]}
        self.net.cut()
        time.sleep(seconds)
        self.net.join()
        return seen

    def kill(self, machine: Machine, going: subprocess.Popen[bytes]) -> dict[str, Any]:
        """Kill all that runs on `machine` while it trains a candidate: something that it did not before."""
        before = [path.parent for path in self.boxes["dies"].glob("runs/experiments/*/*/job.json")]
        wait_until(lambda: (found := training(self.boxes["dies"])) and found[0] not in before, going)
        found = training(self.boxes["dies"])
        machine.unplug()
        assert found, "it trained a moment ago"
        number = next(job["number"] for job in self.jobs() if job["key"] == found[0].name)
        return {"killed_in_experiment": number, "killed_at_step": found[1]}

    def jobs(self) -> list[dict[str, Any]]:
        """Of each run of the deployment, as the server has it: number, key and split of its experiment, its state."""
        body = json.dumps({"sort": "START_TIME_ASC"}).encode()
        with urlopen(Request(f"{self.api}/flow_runs/filter", body, {"Content-Type": "application/json"})) as answer:
            runs = [run for run in json.load(answer) if "job" in run["parameters"]]
        return [{**run["parameters"]["job"], "state": run["state_name"]} for run in runs]

    def told(self) -> dict[str, Any]:
        """How the runs of the deployment ended, and who brought how many results."""
        jobs = self.jobs()
        asked = {(job["key"], job["split"]) for job in jobs}
        done = {name: len(set(box.glob("runs/experiments/*/*/result-*.json"))) for name, box in self.boxes.items()}
        ended = dict(Counter(job["state"] for job in jobs))
        return {"runs": len(jobs), "runs_by_state": ended, "called_anew": len(jobs) - len(asked), "results_of": done}


def under_way(checkout: Path) -> list[Path]:
    """The folders of experiments in `checkout` that have begun and have no result."""
    begun = [path.parent for path in checkout.glob("runs/experiments/*/*/job.json")]
    return [folder for folder in begun if not any(folder.glob("result-*.json"))]


def training(checkout: Path) -> tuple[Path, int] | None:
    """The folder of the experiment that trains in `checkout`, and its step; None while none does."""
    for run in checkout.glob("runs/experiments/*/*/runs/train/*"):
        if (live := read_live(run)) and live["step"]:
            return run.parents[2], live["step"]
    return None


def compared(alone: Path, pool: Path) -> dict[str, Any]:
    """Whether both have the same table, but for what is measured, and the same metrics and best arena."""
    tables = [rows(place / "data") for place in (alone, pool)]
    same = {
        "table": tables[0] == tables[1],
        **{name: (alone / path).read_bytes() == (pool / path).read_bytes()
           for name, path in {"metrics": "metrics/iterate.json", "arena": "data/iterate/train.py"}.items()},
    }  # fmt: skip
    return {"equal": all(same.values()), "same": same, "but_for": MEASURED, "experiments": len(tables[0]) - 1}


def cloned(project: Path, name: str) -> Path:
    """A clone of `project` beside it, which has none of its data."""
    sh(project.parent, "git", "clone", "-q", str(project), name)
    return project.parent / name


def of_a_machine(checkout: Path, api: str, **more: str) -> dict[str, str]:
    """The environment of a process in `checkout`: its own code, its own folders, one thread."""
    temp = checkout / ".ratchet/tmp"
    temp.mkdir(parents=True, exist_ok=True)
    (temp / "aws").touch()  # not this user's settings
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return environment(
        checkout / ".ratchet/prefect", api, PATH=path, PYTHONPATH=str(checkout), TMPDIR=str(temp),
        OMP_NUM_THREADS="1", RATCHET_THREADS="1", RATCHET_SANDBOX="process", RATCHET_WANDB="disabled",
        AWS_CONFIG_FILE=str(temp / "aws"), **KEYS, **more,
    )  # fmt: skip


def python(where: Path, env: Mapping[str, str], *words: str) -> None:
    """`python -m …` in `where`, to its end. Raises InfrastructureError with its last words."""
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, cwd=where, env=env, capture_output=True, text=True, timeout=SESSION_S, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr)[-2000:]
        raise InfrastructureError(" ".join(words), f"exit code {done.returncode}: {said}", "mend it, and run again")


@contextmanager
def s3_store(folder: Path, host: str) -> Iterator[str]:
    """The address of a store at `host` with an empty bucket. Its log in `folder` has a line for each request."""
    port, log = free_port(host), folder / "store.log"
    command = [str(Path(sys.executable).with_name("moto_server")), "-H", host, "-p", str(port)]
    with log.open("wb") as words:
        server = subprocess.Popen(command, cwd=folder, stdout=words, stderr=words)
    try:
        wait_until(lambda: b"Running on" in log.read_bytes(), server)
        address = f"http://{host}:{port}"
        boto3.client("s3", endpoint_url=address, region_name=KEYS["AWS_DEFAULT_REGION"], aws_access_key_id="toy",
                     aws_secret_access_key="toy").create_bucket(Bucket=BUCKET)  # fmt: skip
        yield address
    finally:
        server.kill()
        server.wait()


def wait_until(true: Callable[[], object], process: subprocess.Popen[bytes]) -> None:
    """Wait until `true()`. Raises InfrastructureError when `process` ends before, or it takes too long."""
    until = time.monotonic() + PATIENCE_S
    while not true():
        if process.poll() is not None or time.monotonic() > until:
            raise InfrastructureError("pool", "what was waited for never came", "see the logs, with --keep")
        time.sleep(0.1)


def main() -> int:
    """Measure and keep. Exit code 1 when the tables differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=int, default=4, help="candidates of the session")
    parser.add_argument("--cut", type=float, default=60.0, help="seconds without a network")
    parser.add_argument("--slow", type=float, default=3.0, help="how many times slower one machine is")
    parser.add_argument("--lost", type=float, default=75.0, help="RATCHET_EXPERIMENT_LOST_S of the session")
    parser.add_argument("--keep", type=Path, help="work in this folder, which is to be new, and leave it")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        check_means("bench/pool.py")
        with tempfile.TemporaryDirectory(prefix="ratchet-pool-") as folder:
            figures = measure((asked.keep or Path(folder)).resolve(), asked)
    except RatchetError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    results.keep("pool", figures)
    return 0 if figures["equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
