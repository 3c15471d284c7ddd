"""Jobs that behave and jobs that do not, and how each must end; for both kinds of sandbox. Standard library only."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from ratchet.sandbox.job import End, Job, Limits

LIMITS = Limits(seconds=60, memory_mb=256, processes=40, file_mb=8, log_mb=1)


@dataclass(frozen=True)
class Case:
    """A script, its own limits, and how it ends: end, exit code, and what `detail` or the last words must contain."""

    script: str
    end: End
    code: int
    said: str = ""
    seconds: float = 60


CASES = {
    "done": Case("print('well')", End.DONE, 0, "well"),
    "exit_code": Case("raise SystemExit(3)", End.CRASHED, 3, "exit code 3"),
    "raises": Case("raise ValueError('too bad')", End.CRASHED, 1, "ValueError: too bad"),
    "segfault": Case("import os; os.kill(os.getpid(), 11)", End.CRASHED, 139, "signal SIGSEGV"),
    "endless": Case("while True: pass", End.TIMED_OUT, 137, "no end within 1.5 s", 1.5),
    "asleep_deaf": Case(
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(99)",
        End.TIMED_OUT, 137, "no end within 1.5 s", 1.5,
    ),
    "memory_bomb": Case("a = []\nwhile True: a.append(bytearray(4 << 20))", End.OUT_OF_MEMORY, 137, "over 256 MiB"),
    "memory_bomb_of_a_child": Case(
        "import os\npid = os.fork()\nif pid == 0:\n  a = []\n  while True: a.append(bytearray(4 << 20))\n"
        "os.waitpid(pid, 0); raise SystemExit(137)",
        End.OUT_OF_MEMORY, 137, "over 256 MiB",
    ),
    "log_bomb": Case("while True: print('x' * 999)", End.TOO_MUCH_OUTPUT, 137, "more than 1 MiB printed"),
    "large_file": Case("open('f', 'wb').write(bytes(9 << 20))", End.CRASHED, 1, "File too large"),
    "no_such_module": Case("import nothing_like_it", End.CRASHED, 1, "No module named 'nothing_like_it'"),
}  # fmt: skip
"""What both kinds tell apart in the same words."""

FORK_BOMB = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"
FORK_BOMB_IN_SESSIONS = (
    "import os\nwhile True:\n  try:\n    if os.fork() == 0 and os.getpgrp() != os.getpid(): os.setsid()\n"
    "  except OSError: pass"
)


def script_job(folder: Path, script: str, *arguments: str, limits: Limits = LIMITS, **more: object) -> Job:
    """The job that runs `script` with the sandbox's Python in `folder`, which it may write."""
    job = Job(
        name="a job", argv=("python", "-c", script, *arguments), folder=folder, log=folder.parent / "job.log",
        limits=limits, writes=(folder,),
    )  # fmt: skip
    return replace(job, **more)  # pyright: ignore[reportArgumentType]


def job_of(case: Case, folder: Path) -> Job:
    """The job of one case."""
    return script_job(folder, case.script, limits=replace(LIMITS, seconds=case.seconds))


def until(true: Callable[[], object], patience_s: float = 30.0) -> None:
    """Wait until `true()`; fail after `patience_s`."""
    end = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.02)


def living_with(mark: str) -> list[int]:
    """The living processes whose command line contains `mark`, this one left out."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = " ".join(process.info["cmdline"] or ())
        if mark in words and process.info["status"] != psutil.STATUS_ZOMBIE and process.pid != os.getpid():
            found.append(process.pid)
    return found
