"""A job as a process of its own with limits: what there is without a container engine. `isolation: weak`.

Holds time, memory, processes and output; hides no file and no network. The work is the keeper's (keeper.py); this is
the owner's end. Refuses to know containers.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import psutil

from ratchet.core.errors import InfrastructureError, InputError, RatchetError
from ratchet.sandbox.job import PACKAGE_ROOT, PYTHON, End, Ended, Isolation, Job, Kind, Running, how_it_exited
from ratchet.sandbox.keeper import KILLED_S
from ratchet.sandbox.keys import refuse_keys
from ratchet.sandbox.words import last_lines
from ratchet.settings import job_environment

MARK = "SANDBOX_JOB"
"""A variable in the environment of all of a job's processes, by which they are found when their keeper is gone."""


class ProcessSandbox:
    """Runs jobs as processes of the caller's user."""

    kind: Kind = "process"
    isolation: Isolation = "weak"

    def start(self, job: Job) -> RunningProcess:
        """Start `job`. Raises InputError when it carries a key, InfrastructureError when no process can be made."""
        refuse_keys(job)
        job.log.parent.mkdir(parents=True, exist_ok=True)
        job.log.write_bytes(b"")
        return RunningProcess(job)


class RunningProcess(Running):
    """A job under its keeper. Leaving the `with` ends it and all that it started."""

    def __init__(self, job: Job) -> None:
        self.name, self._log = job.name, job.log
        self._ended: Ended | None = None
        self._failure: RatchetError | None = None
        self._mark = uuid.uuid4().hex
        self._temp = Path(tempfile.mkdtemp(prefix="ratchet-job-"))
        try:
            self._keeper = subprocess.Popen(
                [sys.executable, "-P", "-m", "ratchet.sandbox.keeper"],
                cwd=self._temp,
                env={"PYTHONPATH": str(PACKAGE_ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise InfrastructureError(job.name, f"no process can be started: {error}", "end other work") from None
        self._tell(json.dumps(self._spec(job)))

    def _spec(self, job: Job) -> dict[str, object]:
        argv = [sys.executable if job.argv[0] == "python" else job.argv[0], *job.argv[1:]]
        places = {"HOME": str(self._temp), "TMPDIR": str(self._temp), MARK: self._mark}
        return {
            "argv": argv,
            "folder": str(job.folder.absolute()),
            "log": str(job.log.absolute()),
            "limits": asdict(job.limits),
            "environment": {**job_environment(), **places, **PYTHON, **job.environment},
            "cuda": job.device.startswith("cuda"),
            "temp": str(self._temp),
        }

    def poll(self) -> Ended | None:
        """How it ended, or None while it runs. Raises InputError when it could not even be started."""
        if self._failure is None and self._ended is None and self._keeper.poll() is not None:
            try:
                self._ended = self._read()
            except RatchetError as error:
                self._failure = error
        if self._failure is not None:
            raise self._failure
        return self._ended

    def wait(self) -> Ended:
        """Wait for its end, which its own limit bounds."""
        self._keeper.wait()
        ended = self.poll()
        assert ended is not None, "its keeper has ended"
        return ended

    def stop(self, grace_s: float = 10.0) -> Ended:
        """SIGTERM, then SIGKILL after `grace_s` seconds; all that it started goes too."""
        if self.poll() is None:
            self._tell(f"stop {max(0.0, grace_s):f}")
        with suppress(subprocess.TimeoutExpired):
            self._keeper.wait(grace_s + 2 * KILLED_S)
        self._keeper.kill()  # a keeper that hangs; one that has ended does not feel it
        return self.wait()

    def _tell(self, line: str) -> None:
        assert self._keeper.stdin is not None
        with suppress(BrokenPipeError):
            self._keeper.stdin.write(line.encode() + b"\n")
            self._keeper.stdin.flush()

    def _read(self) -> Ended:
        """What the keeper reports. Its own failure is the world's; its death by a signal is laid to the job, which
        runs as the same user and can kill it."""
        said, complaint = (stream.read() if stream else b"" for stream in (self._keeper.stdout, self._keeper.stderr))
        self._close()
        if self._keeper.returncode != 0 or not said:
            kill_marked(self._mark)
            shutil.rmtree(self._temp, ignore_errors=True)
            return self._without_keeper(complaint.decode(errors="replace"))
        told = json.loads(said)
        if "refused" in told:
            raise InputError(self.name, f"cannot be started: {told['refused']}", "mend its command or its folder")
        return Ended(End(told["end"]), told["exit_code"], told["seconds"], last_lines(self._log), told["detail"])

    def _without_keeper(self, complaint: str) -> Ended:
        code = self._keeper.returncode
        if code < 0:
            how = f"its keeper ended with {how_it_exited(128 - code)}"
            return Ended(End.CRASHED, 128 - code, 0.0, last_lines(self._log), how)
        last = complaint.strip().splitlines()[-1:] or [how_it_exited(code)]
        raise InfrastructureError(self.name, f"the sandbox failed: {last[0]}", "run it again")

    def _close(self) -> None:
        for stream in (self._keeper.stdin, self._keeper.stdout, self._keeper.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


def kill_marked(mark: str) -> None:
    """Kill every process of this user whose environment carries `mark`, until a look finds none.

    All that can be done once the keeper is dead, to which orphans came. A process that the job has started with another
    environment is not found: what kills its keeper can leave such a one behind (SECURITY.md).
    """
    for _ in range(100):
        found = [process for process in psutil.process_iter(["environ"]) if _marked(process, mark)]
        for process in found:
            with suppress(psutil.Error):
                process.kill()
        if not found:
            return


def _marked(process: psutil.Process, mark: str) -> bool:
    alive = process.pid != os.getpid() and (process.info["environ"] or {}).get(MARK) == mark
    with suppress(psutil.Error):
        return alive and process.status() != psutil.STATUS_ZOMBIE
    return False
