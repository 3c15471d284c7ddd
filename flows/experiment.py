"""One candidate as a Prefect flow: the unit that travels to a work pool. The research loop calls it by its name.

    python -m flows.experiment serve --limit 2       serves the deployment `experiment/experiment` here
    python -m flows.experiment deploy POOL           makes it one of a work pool, for workers elsewhere
    python -m flows.experiment work POOL             joins the pool with this checkout (docs/scale.md)

Refuses to know why an experiment is tried.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
from prefect import flow
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.utilities.callables import parameter_schema

from ratchet.loops.research.events import Everyone
from ratchet.loops.research.exchange import arrived, deliver, insistently
from ratchet.loops.research.executor import Experiment, Laboratory, Worker
from ratchet.loops.research.experiment import Workbench, kept, patient
from ratchet.loops.research.pool import BEATS
from ratchet.sandbox.choose import choose
from ratchet.settings import Settings, child_environment, settings
from ratchet.train.device import Device, resolve_device, shared
from ratchet.train.progress import read_live

NAME = "experiment"
CHECKOUT = "EXPERIMENT_CHECKOUT"
"""Tells a worker's runs where its checkout is: their deployment knows no machine."""
ENTRYPOINT = "flows/experiment.py:experiment"


@flow(name=NAME, persist_result=False, log_prints=True)
def experiment(job: dict[str, Any], away: dict[str, Any] | None = None, beat_s: float = 20.0) -> None:
    """Train and judge one candidate of a research session.

    Raises InfrastructureError when the world failed; a candidate that crashes is a result.

    Args:
        job: the JSON of an Experiment
        away: what must be the same here, when only the DVC remote is shared; its result then goes there
        beat_s: seconds between two signs of life
    """
    here, project, patience_s = settings(), Path.cwd(), beat_s * BEATS
    with beating(str(job["number"]), beat_s) as seen:
        device = device_for(here, away)
        asked = Experiment.of(job)
        if away:
            asked = insistently(lambda: arrived(job, away, device, project, here.runs), patience_s)
        seen.append(asked.folder)
        result = kept(laboratory(here, device))(asked, Worker())
        if away:
            insistently(lambda: deliver(asked, project), patience_s)
    print(f"experiment {asked.number}: {result.reason or f'val_bpb {result.val_bpb:.6f}'}")


def device_for(here: Settings, away: dict[str, Any] | None) -> Device:
    """What this machine computes on, with as many threads and ranks as the session's has."""
    told = (away or {}).get("device", {})
    device = resolve_device(here.device, told.get("threads", here.threads))
    return shared(device, told.get("ranks", here.ranks))


def laboratory(here: Settings, device: Device) -> Laboratory:
    """Who does it: the real one, which tries again when the world fails."""
    return patient(Workbench(choose(here, device=device.torch_name), (device,), Everyone()))


@contextmanager
def beating(number: str, every_s: float) -> Iterator[list[Path]]:
    """Renew the run's progress every so often, as a sign of life: how far the training is whose folder is appended."""
    ended, seen = threading.Event(), list[Path]()
    artifact = create_progress_artifact(0.0, key=f"experiment-{number}", description=f"experiment {number}")

    def beat() -> None:
        while not ended.wait(every_s):
            with suppress(PrefectException, httpx.HTTPError, OSError):  # a cut network is no reason to end
                update_progress_artifact(artifact, percent(seen))  # pyright: ignore[reportArgumentType]

    thread = threading.Thread(target=beat, daemon=True, name="signs of life")
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join(every_s)


def percent(folders: Sequence[Path]) -> float:
    """Of the training that runs in the first of `folders`; 0 while none does."""
    for run in (path for folder in folders for path in (folder / "runs").glob("train/*")):
        if live := read_live(run):
            return min(100.0, 100.0 * live["step"] / max(1, live["stop_step"]))
    return 0.0


async def deploy(pool: str, entrypoint: str = ENTRYPOINT) -> None:
    """Make the deployment one of the work pool `pool`: its runs begin in the checkout of the worker that takes them."""
    enter = {"prefect.deployments.steps.set_working_directory": {"directory": f"{{{{ ${CHECKOUT} }}}}"}}
    async with get_client() as client:
        await client.create_deployment(
            await client.create_flow(experiment), NAME, work_pool_name=pool, entrypoint=entrypoint, pull_steps=[enter],
            parameter_openapi_schema=parameter_schema(experiment).model_dump(), enforce_parameter_schema=True,
        )  # fmt: skip


def work(pool: str, limit: int) -> int:
    """A worker of `pool` in this checkout, until Ctrl-C; its exit code."""
    command = ["worker", "start", "--pool", pool, "--type", "process", "--limit", str(limit)]
    environment = child_environment(**{CHECKOUT: str(Path.cwd())})
    return subprocess.run([sys.executable, "-m", "prefect", *command], env=environment, check=False).returncode


def main(argv: Sequence[str] | None = None) -> int:
    """Serve, deploy or work; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m flows.experiment", description=experiment.description)
    parser.add_argument("what", choices=("serve", "deploy", "work"))
    parser.add_argument("pool", nargs="?", help="of deploy and work; one of the type process")
    parser.add_argument("--limit", type=int, default=1, help="experiments at once")
    asked = parser.parse_args(argv)
    if asked.what == "serve":
        experiment.serve(NAME, limit=asked.limit, pause_on_shutdown=False)
        return 0
    if not asked.pool:
        parser.error(f"{asked.what} needs the name of a work pool")
    if asked.what == "work":
        return work(asked.pool, asked.limit)
    try:
        asyncio.run(deploy(asked.pool))
    except ObjectNotFound:
        parser.error(
            f"no work pool {asked.pool!r}: make it with `prefect work-pool create {asked.pool} --type process`"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
