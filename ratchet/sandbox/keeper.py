"""The process between a job and its owner: starts the job, holds its limits, and ends all of it when the owner is gone.

A process of its own, because only then is somebody left to clean up after an owner that was killed with SIGKILL, and
because orphans of the job come to it (it is a subreaper), whatever session they made for themselves. Standard input
brings one line of JSON and then the owner's wishes; its end means that the owner is gone. Refuses to know what the job
is for.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import re
import resource
import selectors
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import psutil

from ratchet.sandbox.job import MIB, End, Limits, Verdict, how_it_exited
from ratchet.sandbox.tree import below_me, kill_below_me

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
NICENESS = 5
OOM_SCORE = 800
"""Of 1000: when the machine runs out of memory the kernel ends the job, not its owner."""

LOOK_S = 0.05
"""How often the memory of the known processes is read; how late a limit is noticed."""

WALK_SHARE = 0.02
"""Of the time may go into looking for new processes: a walk over /proc takes 2 ms with 100 processes, 20 with 1,000."""

KILLED_S = 10.0
"""What the kernel may take to end killed processes on a machine under load."""


class Keeper:
    """One job from its start to the end of its last process."""

    def __init__(self, spec: dict[str, Any], owner: int) -> None:
        self.limits = Limits(**spec["limits"])
        self.verdict: Verdict | None = None
        self.kill_at = math.inf
        self.status: int | None = None
        self.log = open(spec["log"], "wb", buffering=0)  # noqa: PTH123, SIM115  (closed with this process)
        self.written = 0
        self.started = monotonic()
        self.child = _start(spec, self.limits)
        self.known = [self.child.pid]
        self.next_walk = self.started
        self.selector = selectors.DefaultSelector()
        self.selector.register(owner, selectors.EVENT_READ, self._hear)
        assert self.child.stdout is not None
        os.set_blocking(self.child.stdout.fileno(), False)
        self.selector.register(self.child.stdout, selectors.EVENT_READ, self._copy)
        if hasattr(os, "pidfd_open"):  # tells of the end at once; elsewhere it is noticed at the next look
            self.ended = os.pidfd_open(self.child.pid)
            self.selector.register(self.ended, selectors.EVENT_READ, lambda _: self.selector.unregister(self.ended))

    def run(self) -> dict[str, Any]:
        """Watch until the job's first process has ended, end the rest, and say how it went."""
        while self.status is None:
            for key, _ in self.selector.select(LOOK_S):
                key.data(key.fd)
            self._reap()
            if self.status is None:
                self._hold_limits()
        seconds = monotonic() - self.started
        kill_below_me(KILLED_S)
        self._copy_rest()
        return {"exit_code": self.status, "seconds": seconds, **self._how()}

    def _how(self) -> dict[str, str]:
        if self.verdict is not None:
            return {"end": self.verdict.end, "detail": self.verdict.detail}
        assert self.status is not None
        if self.status == 0:
            return {"end": End.DONE, "detail": ""}
        return {"end": End.CRASHED, "detail": how_it_exited(self.status)}

    def _hear(self, owner: int) -> None:
        """A wish of the owner's: `stop SECONDS`. The end of the stream is its end."""
        said = os.read(owner, 4096).decode()
        if not said:
            self.selector.unregister(owner)
            self._end(End.STOPPED, "its owner is gone")
        elif wish := re.search(r"stop ([\d.]+)\n", said):
            self.verdict = self.verdict or Verdict(End.STOPPED, "by its owner")
            self.kill_at = min(self.kill_at, monotonic() + float(wish[1]))
            with suppress(ProcessLookupError):
                os.killpg(self.child.pid, signal.SIGTERM)

    def _copy(self, pipe: int) -> None:
        """What the job printed, up to its limit, into its log."""
        with suppress(BlockingIOError):
            data = os.read(pipe, 65536)
            if not data:
                self.selector.unregister(pipe)
            room = self.limits.log_mb * MIB - self.written
            self.written += self.log.write(data[:room])
            if len(data) > room:
                self._end(End.TOO_MUCH_OUTPUT, f"more than {self.limits.log_mb} MiB printed")

    def _copy_rest(self) -> None:
        """What is left in the pipe; nobody writes to it any more."""
        assert self.child.stdout is not None
        pipe = self.child.stdout.fileno()
        before = -1
        while before != self.written:
            before = self.written
            with suppress(KeyError):  # unregistered once at its end, here again
                self._copy(pipe)

    def _reap(self) -> None:
        """Collect every process that has ended; note how the job's first one did."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self.child.pid:
                    code = os.waitstatus_to_exitcode(status)
                    self.status = self.child.returncode = code if code >= 0 else 128 - code

    def _hold_limits(self) -> None:
        now = monotonic()
        if now >= self.kill_at:
            kill_below_me(KILLED_S)
        elif now - self.started >= self.limits.seconds:
            self._end(End.TIMED_OUT, f"no end within {self.limits.seconds:g} s")
        if now >= self.next_walk:
            self.known = [found.pid for found in below_me()]
            self.next_walk = monotonic() + min(0.5, (monotonic() - now) / WALK_SHARE)
            if len(self.known) > self.limits.processes:
                self._end(End.CRASHED, f"more than {self.limits.processes} processes")
        limit = self.limits.memory_mb * MIB
        if _resident(self.known) > limit and _proportional(self.known) > limit:
            self._end(End.OUT_OF_MEMORY, f"over {self.limits.memory_mb:,} MiB")

    def _end(self, end: End, detail: str) -> None:
        self.verdict = self.verdict or Verdict(end, detail)
        kill_below_me(KILLED_S)


def _resident(processes: list[int]) -> int:
    """Bytes in memory, shared ones counted once for each process."""
    total = 0
    for process in processes:
        with suppress(psutil.Error):
            total += psutil.Process(process).memory_info().rss
    return total


def _proportional(processes: list[int]) -> int:
    """Bytes in memory with shared ones divided among who shares them: right, and a hundred times dearer to read."""
    total = 0
    for process in processes:
        with suppress(psutil.Error):
            memory = psutil.Process(process).memory_full_info()
            total += getattr(memory, "pss", memory.rss)
    return total


def _start(spec: dict[str, Any], limits: Limits) -> subprocess.Popen[bytes]:
    """The job's first process, in a session of its own."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    _go_first()
    cuda = spec["cuda"]
    tasks = _tasks_of_user() if os.geteuid() else 0
    return subprocess.Popen(
        spec["argv"],
        cwd=spec["folder"],
        env=spec["environment"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=lambda: _contain(limits, cuda=cuda, tasks=tasks),  # this process has one thread
    )


def _contain(limits: Limits, *, cuda: bool, tasks: int) -> None:
    """In the job's process before its program starts: die with the keeper, be nice, keep to limits.

    Address space is not limited: torch reserves far more than it uses. The limits here are backstops for what the
    keeper might see too late.
    """
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.nice(NICENESS)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_FSIZE, limits.file_mb * MIB)
    if math.isfinite(limits.seconds):
        _lower(resource.RLIMIT_CPU, math.ceil(limits.seconds + 60) * (os.cpu_count() or 1))
    if not cuda:
        _lower(resource.RLIMIT_DATA, (2 * limits.memory_mb + 2048) * MIB)
    if tasks:
        _lower(resource.RLIMIT_NPROC, tasks + max(1024, 4 * limits.processes))


def _lower(which: int, value: int) -> None:
    """Lower a limit, hard and soft; never raise it."""
    _, hard = resource.getrlimit(which)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (value, value))


def _tasks_of_user() -> int:
    """Threads that this user runs now: RLIMIT_NPROC counts them all."""
    me = os.getuid()
    found = [p.info for p in psutil.process_iter(["uids", "num_threads"])]
    return sum(info["num_threads"] or 1 for info in found if info["uids"] and info["uids"].real == me)


def _go_first() -> None:
    """Where the caller may (root): run before all ordinary work, or thousands of a job's processes starve its keeper.

    Measured: a fork bomb of root's was ended after 8 s without, and one that makes sessions after 178 s.
    """
    if hasattr(os, "SCHED_RESET_ON_FORK"):
        with suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def main() -> None:
    """Read the job from standard input, keep it, and write how it ended to standard output."""
    said = b""
    while not said.endswith(b"\n"):
        more = os.read(0, 65536)
        if not more:
            return
        said += more
    spec = json.loads(said)
    try:
        try:
            ended = Keeper(spec, owner=0).run()
        except FileNotFoundError as error:
            ended = {"refused": f"{error.filename}: {error.strerror}"}
        sys.stdout.write(json.dumps(ended))
    finally:
        shutil.rmtree(spec["temp"], ignore_errors=True)


if __name__ == "__main__":
    main()
