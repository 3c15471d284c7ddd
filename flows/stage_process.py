"""One `dvc repro -s STAGE` as a child process group: started, its lines passed on, and never left behind.

Knows processes and the words DVC prints; refuses to know Prefect.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from ratchet.commands.project import STAGE_LOGS
from ratchet.settings import child_environment

GRACE_S = 10.0
"""From TERM to KILL: what a stage may take to commit a checkpoint."""

KILLED_S = 5.0
"""What the kernel may take to end a killed process on a machine under load."""

LAST_LINES = 8

Kind = Literal["Ran", "Cached", "Skipped", "Stopped", "Failed"]

STOPPED_CODES = frozenset({128 + signal.SIGINT, 128 + signal.SIGTERM})
"""How a stage ends that was asked to, by a signal or by `ratchet stop`, and has saved what it had."""

_WORDS: tuple[tuple[str, Kind], ...] = (
    ("Running stage ", "Ran"),
    ("is cached - skipping run", "Cached"),
    ("didn't change, skipping", "Skipped"),
)
_EXITED = re.compile(r"failed to run: .* exited with (-?\d+)")
_ADVICE = re.compile(
    r"(To track the changes with git|\s+git add |To enable auto staging|\s+dvc config core.autostage|Use `dvc push`|"
    r"WARNING: '.*' is empty\.|\s*$)"
)
_DVC_SAYS = re.compile(r"(ERROR: failed to reproduce|> |Running stage |Updating lock file|Generating lock file)")


@dataclass(frozen=True)
class Ending:
    """How a stage's process ended. `last` are its own last lines, without DVC's."""

    kind: Kind
    exit_code: int
    last: tuple[str, ...]


async def reproduce(
    stage: str, *, force: bool = False, say: Callable[[str], None], more: Mapping[str, str] | None = None
) -> Ending:
    """Let DVC run or restore `stage`; every line goes to `say` and to `.ratchet/logs/<stage>.log`.

    `more`: variables for this run alone.
    However this ends (error, timeout, cancellation, Ctrl-C) the process group is dead when it returns.
    """
    # `--wait-for-lock`: independent stages run side by side, and DVC's lock is held only while it reads and writes.
    command = [sys.executable, "-m", "dvc", "--wait-for-lock", "repro", "-s", *(["-f"] if force else []), stage]
    seen: deque[str] = deque(maxlen=50)
    kind: Kind = "Failed"
    exit_code: int | None = None
    STAGE_LOGS.mkdir(parents=True, exist_ok=True)
    with (STAGE_LOGS / f"{stage}.log").open("w", encoding="utf-8") as log:

        def heard(line: str) -> None:
            nonlocal kind, exit_code
            print(line, file=log, flush=True)
            if not _ADVICE.match(line):
                say(line)
            seen.append(line)
            kind = kind_of(line) or kind
            exited = _EXITED.search(line)
            exit_code = int(exited.group(1)) if exited else exit_code

        status = await run_group(command, stage_environment() | dict(more or {}), heard)
    if exit_code in STOPPED_CODES:
        return Ending("Stopped", 130, own_lines(seen))
    if status != 0:
        return Ending("Failed", exit_code if exit_code is not None else status, own_lines(seen))
    return Ending("Skipped" if kind == "Failed" else kind, 0, ())


async def run_group(command: Sequence[str], environment: Mapping[str, str], heard: Callable[[str], None]) -> int:
    """The exit code of `command`, each line of which goes to `heard`.

    It leads a process group of its own, which is dead when this returns, however it ends.
    """
    child = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
        env=environment,
    )
    try:
        assert child.stdout is not None
        async for line in lines(child.stdout):
            heard(line)
        return await child.wait()
    finally:
        await kill_group(child)


def stage_environment() -> dict[str, str]:
    """The environment of a stage: `python` is this interpreter, activated or not, and buffers nothing."""
    here = child_environment()
    programs = str(Path(sys.executable).parent)
    return {**here, "PATH": os.pathsep.join([programs, here.get("PATH", "")]), "PYTHONUNBUFFERED": "1"}


def kind_of(line: str) -> Kind | None:
    """What a line of DVC's says about how the stage is dealt with; None for any other line."""
    return next((kind for words, kind in _WORDS if words in line), None)


async def lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """The lines of `stream`, of any length; a progress bar's carriage return ends one too."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest = ""
    while chunk := await stream.read(65536):
        *whole, rest = re.split(r"\r\n|\n|\r", rest + decoder.decode(chunk))
        for line in whole:
            if line:
                yield line
    if rest:
        yield rest


def own_lines(seen: deque[str]) -> tuple[str, ...]:
    """The last lines that the stage itself said; DVC's own when there are none."""
    own = [line for line in seen if not _ADVICE.match(line) and not _DVC_SAYS.match(line)]
    return tuple((own or [*seen] or ["it said nothing"])[-LAST_LINES:])


async def kill_group(child: asyncio.subprocess.Process) -> None:
    """TERM to the child's process group, KILL to what is left of it after `GRACE_S`; returns when all are dead."""
    for number, patience_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, KILLED_S)):
        until = time.monotonic() + patience_s
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        while lives(child.pid) and time.monotonic() < until:
            await asyncio.sleep(0.05)
    await child.wait()
    if child.stdout is not None:  # to its end, so that the event loop lets go of the pipe
        with suppress(TimeoutError):
            await asyncio.wait_for(child.stdout.read(), KILLED_S)


def lives(group: int) -> bool:
    """Whether a process of the group is more than a zombie; an orphan stays one where init reaps nothing."""
    for process in psutil.process_iter(["status"]):
        with suppress(ProcessLookupError):
            if process.info["status"] != psutil.STATUS_ZOMBIE and os.getpgid(process.pid) == group:
                return True
    return False
