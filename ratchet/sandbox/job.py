"""What a sandbox is asked to run and what it answers: jobs, limits, endings, and what both kinds of sandbox share.

Refuses to know how a job is held.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, Self

import ratchet
from ratchet.core.errors import RatchetError

Kind = Literal["process", "container"]
Isolation = Literal["weak", "container"]
"""`weak`: another process of the same user, which can read what the user can. The word the tables show."""

MIB = 2**20
PACKAGE_ROOT = Path(ratchet.__file__).resolve().parent.parent
PYTHON = {"PYTHONPATH": str(PACKAGE_ROOT), "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
"""For a job's Python: Ratchet importable from where it is here, nothing from the working folder."""


class End(StrEnum):
    """How a job ended. The value is the word that tables and messages show."""

    DONE = "done"
    CRASHED = "crashed"
    TIMED_OUT = "timed out"
    OUT_OF_MEMORY = "out of memory"
    TOO_MUCH_OUTPUT = "too much output"
    STOPPED = "stopped"
    """By its owner (`Running.stop` or `kill`), not by a limit and not by itself."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a job may use; sizes in MiB. It has the caller's CPUs."""

    seconds: float
    memory_mb: int
    processes: int = 128
    file_mb: int = 4096
    """The largest file it may write."""
    log_mb: int = 16
    """What it may print, both streams together."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One command to run in a sandbox.

    `argv[0] == "python"` is the sandbox's own interpreter with Ratchet importable. `reads` and `writes` are files and
    folders that it needs at their own absolute paths: a container shows nothing else of the project, a process sandbox
    cannot hide the rest. `environment` is all that it gets beside what the sandbox needs; no key is passed on but those
    that `keys` names, for a person's own tool that must reach its service.
    `device` is a torch device name. `run` labels a container, so that its leftovers can be found after a kill.
    """

    name: str
    argv: tuple[str, ...]
    folder: Path
    log: Path
    limits: Limits
    reads: tuple[Path, ...] = ()
    writes: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    device: str = "cpu"
    run: str = ""
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ended:
    """How a job ended. `exit_code` as the shell gives it (137 = SIGKILL); `last`: its last lines, control characters
    taken out; `detail` says what a limit was, for the table."""

    end: End
    exit_code: int
    seconds: float
    last: tuple[str, ...] = ()
    detail: str = ""


@dataclass(frozen=True)
class Verdict:
    """Why a sandbox ended a job, and what the limit was."""

    end: End
    detail: str


def how_it_exited(code: int) -> str:
    """A shell's exit code in words: `exit code 1`, `signal SIGSEGV`. Not every code above 128 is that of a signal."""
    with suppress(ValueError):
        return f"signal {signal.Signals(code - 128).name}"
    return f"exit code {code}"


class Running(Protocol):
    """A started job. Leaving the `with` ends it and all that it started, whatever happened."""

    name: str

    def poll(self) -> Ended | None:
        """How it ended, or None while it runs. Raises InfrastructureError when the engine died, not the job."""
        ...

    def wait(self) -> Ended:
        """Wait for its end, which its own limit bounds. Raises InfrastructureError as `poll`."""
        ...

    def stop(self, grace_s: float = 10.0) -> Ended:
        """SIGTERM, then SIGKILL after `grace_s` seconds; all that it started goes too."""
        ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(RatchetError):
            self.stop(0.0)


class Sandbox(Protocol):
    """Somewhere to run jobs."""

    kind: Kind
    isolation: Isolation

    def start(self, job: Job) -> Running:
        """Start `job`. Raises InfrastructureError when the sandbox cannot (engine gone, image missing, no GPU)."""
        ...
