"""A training process that is started before there is a job for it, so that its start-up hides behind the judging.

Python, torch and the trainer take seconds to import, the same for every experiment. Only for the process sandbox: a
container is given its job's folders when it starts. Refuses to know what a job is.
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from ratchet.core import atomic
from ratchet.sandbox.job import End, Ended, Job, Limits, Running, Sandbox

MODULE = "ratchet.train.experiment_job"
LOG = "run.log"
WAITS_S = 24 * 3600.0
"""A process that nobody needs any more ends with the session, or after this."""


class WarmProcess:
    """One process that waits. `like`: the job that the next one will resemble (limits but its seconds, device)."""

    def __init__(self, sandbox: Sandbox, folder: Path, like: Job) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._folder, self._like = folder, _shape(like)
        limits = replace(like.limits, seconds=like.limits.seconds + WAITS_S)
        argv = ("python", "-m", MODULE, "--wait", str(folder / "job"))
        job = replace(like, name="next experiment", argv=argv, folder=folder, log=folder / LOG, limits=limits)
        self._running = sandbox.start(job).__enter__()

    def fits(self, job: Job) -> bool:
        """Whether `job` may run here: the same limits and device, and the process still waits."""
        return _shape(job) == self._like and self._running.poll() is None

    def take(self, job: Job, path: Path) -> Running:
        """Give it the file `path` of its job; from now on it is that job's process, under its limit of seconds."""
        atomic.write_text(self._folder / "job", str(path))
        return _Taken(self._running, job, self._folder)

    def close(self) -> None:
        """End it."""
        self._running.__exit__(None, None, None)
        shutil.rmtree(self._folder, ignore_errors=True)


def _shape(job: Job) -> tuple[Limits, str, dict[str, str]]:
    return replace(job.limits, seconds=0.0), job.device, dict(job.environment)


class _Taken:
    """A warm process as the running job it became: its clock starts when it was taken, and its log has the job's name
    too, so that the job's lines are there while it runs and stay when the folder goes."""

    def __init__(self, running: Running, job: Job, folder: Path) -> None:
        self.name, self._running, self._job, self._folder = job.name, running, job, folder
        job.log.unlink(missing_ok=True)  # of an attempt that was killed
        os.link(folder / LOG, job.log)
        self._began = time.monotonic()

    def poll(self) -> Ended | None:
        """See Running."""
        ended = self._running.poll()
        if ended is None and time.monotonic() - self._began >= self._job.limits.seconds:
            stopped = self._running.stop(0.0)
            return self._as_its_own(
                replace(stopped, end=End.TIMED_OUT, detail=f"no end within {self._job.limits.seconds:g} s")
            )
        return self._as_its_own(ended) if ended else None

    def wait(self) -> Ended:
        """See Running."""
        while (ended := self.poll()) is None:
            time.sleep(0.05)
        return ended

    def stop(self, grace_s: float = 10.0) -> Ended:
        """See Running."""
        return self._as_its_own(self._running.stop(grace_s))

    def _as_its_own(self, ended: Ended) -> Ended:
        return replace(ended, seconds=time.monotonic() - self._began)

    def __enter__(self) -> _Taken:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.__exit__(None, None, None)
        shutil.rmtree(self._folder, ignore_errors=True)
