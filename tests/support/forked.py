"""A sandbox that forks this process instead of starting another: tests of the judge need no new Python with torch.

It holds nothing; what is about holding takes a real one.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path
from time import monotonic, sleep
from typing import NoReturn

from ratchet.sandbox.job import End, Ended, Isolation, Job, Kind, Running, how_it_exited
from ratchet.sandbox.words import last_lines
from ratchet.train import logits_server


class ForkSandbox:
    """Runs logits servers, and nothing else, as forks."""

    kind: Kind = "process"
    isolation: Isolation = "weak"

    def start(self, job: Job) -> RunningFork:
        """Start `job`."""
        assert job.argv[:4] == ("python", "-P", "-m", "ratchet.train.logits_server")
        pid = os.fork()
        if pid == 0:
            _serve(job)
        return RunningFork(job, pid)


class RunningFork(Running):
    """A fork, until it has been waited for."""

    def __init__(self, job: Job, pid: int) -> None:
        self.name, self._log, self._pid, self._began = job.name, job.log, pid, monotonic()
        self._ended: Ended | None = None

    def poll(self) -> Ended | None:
        """How it ended, or None while it runs."""
        if self._ended is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                code = code if code >= 0 else 128 - code
                end, detail = (End.CRASHED, how_it_exited(code)) if code else (End.DONE, "")
                self._ended = Ended(end, code, monotonic() - self._began, last_lines(self._log), detail)
        return self._ended

    def wait(self) -> Ended:
        """Wait for its end."""
        while (ended := self.poll()) is None:
            sleep(0.005)
        return ended

    def stop(self, grace_s: float = 10.0) -> Ended:
        """Kill it."""
        if self.poll() is None:
            os.kill(self._pid, signal.SIGKILL)
        return self.wait()


def _serve(job: Job) -> NoReturn:
    """In the child: become the server that `job` asks for, with none of this process' open files."""
    code = 70
    try:
        os.setsid()
        said = os.open(job.log, os.O_WRONLY | os.O_CREAT)
        os.dup2(said, 1)
        os.dup2(said, 2)
        os.closerange(3, 4096)
        sys.stdout, sys.stderr = (open(number, "w", closefd=False, buffering=1) for number in (1, 2))  # noqa: SIM115
        os.chdir(job.folder)
        os.environ.update(job.environment)
        sys.argv = [str(Path(logits_server.__file__)), *job.argv[4:]]
        logits_server.main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001  (the child must never return into the test runner)
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        os._exit(code)
