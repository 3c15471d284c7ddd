"""What the flows of the loops share: start, resume or stop a loop's stage, show its rows as they come, tell its end.

The work is the stage, run by DVC as ever; a flow shows it and ends with it. Refuses to know what a row holds.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from prefect import Flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed, Failed

from flows import artifacts, sigterm
from flows.stage_process import Ending, reproduce
from ratchet.commands import runs
from ratchet.core.errors import RatchetError, first_line

Action = Literal["start", "resume", "stop"]
Rows = list[dict[str, Any]]
WATCH_S = 2.0


class Loop(NamedTuple):
    """A loop as its flow shows it."""

    name: str
    """Of its stage, its runs and its folder below data/."""
    work: str
    """What one run of it is called."""
    unit: str
    """What it commits after."""
    summary: str
    """The file of its folder that a person should read."""
    rows: Callable[[Path], Rows]
    """The rows in a run directory or in the published folder, none while there is no readable file."""
    show: Callable[[Rows, Path], Awaitable[None]]
    """Makes artifacts of them."""

    @property
    def published(self) -> Path:
        """Where its results lie."""
        return Path("data") / self.name


async def act(loop: Loop, action: Action, run: str | None) -> State[Any]:
    """`start` the loop (a run that was interrupted goes on), `resume` the run `run` and no other, or `stop` the one
    that runs after its present unit. Raises InputError for a run that is not there, does not run, or is one of several.
    """
    with sigterm.cancels_this_task():
        return await _act(loop, action, run)


async def _act(loop: Loop, action: Action, run: str | None) -> State[Any]:
    if action == "stop":
        path = runs.running_one(loop.name, loop.work, run).path
        runs.stop(str(path))
        return Completed(name="Asked", message=f"{path} ends after its present {loop.unit}")
    more: dict[str, str] = {}
    if action == "resume":
        found = runs.run_of(loop.name, loop.work, run or loop.name)
        more["RATCHET_RESUME_RUN"] = str(found.path.resolve())
    log = get_run_logger()
    watch = asyncio.create_task(follow(loop))
    try:
        ending = await reproduce(loop.name, force=action == "resume", say=lambda line: log.info("%s", line), more=more)
    finally:
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch
    with harmless():
        await show(loop, loop.published)
    return state_of(loop, ending)


def state_of(loop: Loop, ending: Ending) -> State[Any]:
    """How the stage's end is shown."""
    if ending.kind == "Failed":
        return Failed(message=f"the {loop.work} failed: {ending.last[-1]}", data=ending)
    if ending.kind == "Stopped":
        return Cancelled(name="Stopped", message=f"the {loop.work} was stopped; it can go on", data=ending)
    return Completed(name=ending.kind, message=f"see {loop.published / loop.summary}", data=None)


async def follow(loop: Loop) -> None:
    """Show the rows of the run that goes on whenever there is a new one, until cancelled."""
    count = 0
    while True:
        await asyncio.sleep(WATCH_S)
        with harmless():
            running = await asyncio.to_thread(runs.running, loop.name)
            if running:
                count = await show(loop, running[0].path, above=count)


async def show(loop: Loop, folder: Path, *, above: int = 0) -> int:
    """Show the rows in `folder` when they are more than `above`; returns how many are shown by now."""
    rows = await asyncio.to_thread(loop.rows, folder)
    if len(rows) > above:
        await loop.show(rows, folder)
    return max(len(rows), above)


@contextmanager
def harmless() -> Iterator[None]:
    """Whatever goes wrong while something is shown is told once: the work is not the worse for it."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  (the boundary: work does not fail because nobody could watch it)
        artifacts.say_once(first_line(error))


def main(loop: Loop, flow: Flow[..., Any], argv: Sequence[str] | None = None) -> int:
    """Run `flow` here; returns its exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m flows.{flow.name}", description=flow.description)
    parser.add_argument("action", choices=("start", "resume", "stop"), nargs="?", default="start")
    parser.add_argument("run", nargs="?", help=f"a {loop.work}'s run directory or the start of its fingerprint")
    asked = parser.parse_args(argv)
    try:
        return asyncio.run(_run(flow, asked.action, asked.run))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130


async def _run(flow: Flow[..., Any], action: Action, run: str | None) -> int:
    state: State[Any] = await flow(action, run, return_state=True)
    if state.is_completed():
        print(f"{flow.name}: {state.message}")
        return 0
    ended = await state.aresult(raise_on_failure=False)  # how the stage ended, or what the flow raised
    print(ended if isinstance(ended, RatchetError) else f"{flow.name}: {state.message}", file=sys.stderr)
    return ended.exit_code if isinstance(ended, Ending | RatchetError) else 1
