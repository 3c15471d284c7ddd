"""Which sandbox a run gets: the strongest there is, or the one that the settings demand; said in one line.

Refuses to know how a sandbox holds a job.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from ratchet.core.errors import InfrastructureError
from ratchet.sandbox.container import ContainerSandbox
from ratchet.sandbox.job import End, Job, Limits
from ratchet.sandbox.process import ProcessSandbox
from ratchet.settings import Settings

IMAGES = {"cpu": "ratchet-cpu:local", "cuda": "ratchet-train:local"}
"""What containers/build.py calls the image for each kind of device."""

PROBE = Limits(seconds=60, memory_mb=256, processes=16, log_mb=1)


def choose(settings: Settings, *, device: str = "cpu") -> ContainerSandbox | ProcessSandbox:
    """The sandbox for jobs on the torch device `device`. Says on stderr which it is and why.

    Raises InfrastructureError when a container is required and none can be had.
    """
    if settings.sandbox == "process":
        _say("process, isolation weak: RATCHET_SANDBOX=process")
        return ProcessSandbox()
    try:
        sandbox = container(settings, device)
    except InfrastructureError as error:
        if settings.sandbox != "auto":
            what = f"RATCHET_SANDBOX={settings.sandbox}, but {error.what}"
            raise InfrastructureError("sandbox", what, f"{error.do}; or set RATCHET_SANDBOX=auto") from None
        _say(f"process, isolation weak: {error.what}; RATCHET_SANDBOX=required would refuse")
        return ProcessSandbox()
    _say(f"container of {sandbox.image} ({sandbox.image_digest[:19]}), {sandbox.engine}")
    return sandbox


def container(settings: Settings, device: str) -> ContainerSandbox:
    """A container sandbox that can serve `device`. Raises InfrastructureError: no engine, no image, no GPU in it."""
    kind = device.partition(":")[0]
    if kind == "mps":
        raise InfrastructureError("sandbox", "no container can use the device mps", "set RATCHET_DEVICE=cpu")
    sandbox = ContainerSandbox(settings.image or IMAGES.get(kind, IMAGES["cpu"]))
    if kind == "cuda":
        _probe(sandbox, device)
    return sandbox


def _probe(sandbox: ContainerSandbox, device: str) -> None:
    """Start one container with a GPU: only then does an engine say that it has none."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        job = Job(
            name="probe", argv=("python", "-c", ""), folder=Path("/"), log=here / "log", limits=PROBE, device=device
        )
        with sandbox.start(job) as running:
            ended = running.wait()
    if ended.end is not End.DONE:
        raise InfrastructureError("sandbox", f"a container with a GPU {ended.end}: {ended.detail}", "mend the engine")


def _say(which: str) -> None:
    print(f"sandbox: {which}", file=sys.stderr, flush=True)
