"""The whole pipeline as one Prefect flow, its graph read from dvc.yaml when it starts.

DVC decides whether a stage runs, Prefect when; so tasks cache nothing. What has not changed gets no process at all.
`python -m flows.pipeline` runs it against a server if PREFECT_API_URL names one, else against its own for the while.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.states import Cancelled, Completed, Failed
from prefect.tasks import Task

from flows import artifacts, sigterm
from flows.stage_process import Ending, reproduce
from ratchet.commands.project import results, say_next
from ratchet.core.errors import RatchetError
from ratchet.dag import Node, read_dag


@dataclass(frozen=True)
class Broken:
    """A stage that failed or was stopped, and how."""

    stage: str
    ending: Ending


@flow(name="pipeline", persist_result=False, validate_parameters=True)
async def pipeline(
    first: str | None = None, last: str | None = None, force: tuple[str, ...] = ()
) -> State[dict[str, str]]:
    """Run what has changed between the stages `first` and `last`; those in `force` whether they changed or not.

    The flow ends Completed with how each stage ended (Ran, Cached, Skipped), Stopped (Cancelled) when a stage was asked
    to end, or Failed with the first failing stage's own last lines. Raises InputError for an unknown stage.
    """
    with sigterm.cancels_this_task():
        return await run_chosen(first, last, force)


async def run_chosen(first: str | None, last: str | None, force: tuple[str, ...]) -> State[dict[str, str]]:
    """The flow's work, whose end is its state."""
    dag = await asyncio.to_thread(read_dag, Path.cwd())
    chosen = dag.chosen(first=first, last=last)
    stale = dag.stale(chosen, forced=[dag[name].name for name in force])
    get_run_logger().info("%d of %d stages changed: %s", len(stale), len(chosen), ", ".join(stale) or "none")
    states = await run_all(chosen, stale, frozenset(force))
    await artifacts.show_results(Path.cwd(), dag)
    broken = next((state for state in states.values() if state.is_failed()), None)
    if broken is not None:
        return Failed(message=broken.message, data=broken.data)
    stopped = next((state for state in states.values() if state.is_cancelled()), None)
    if stopped is not None:
        return Cancelled(name="Stopped", message=stopped.message, data=stopped.data)
    return Completed(message=summary(states), data={name: state.name or "" for name, state in states.items()})


async def run_all(
    chosen: Sequence[Node], stale: Mapping[str, Sequence[str]], force: frozenset[str]
) -> dict[str, State]:
    """Every stage's final state. One starts when its parents have ended, one that takes all cores when no other such
    one runs; one that fails stops only those below it."""
    progress = await artifacts.Progress.start("pipeline-progress", len(chosen), "Stages that have ended")
    running: dict[str, asyncio.Task[State]] = {}
    cores = asyncio.Lock()

    async def after_parents(node: Node) -> State:
        before = [await running[parent] for parent in node.parents if parent in running]
        why = stale.get(node.name, ())
        async with cores if node.all_cores and why else nullcontext():
            state = await stage_task(node)(
                node.name, why=why, force=node.name in force, wait_for=before, return_state=True
            )
        await progress.advance()
        return state

    async with asyncio.TaskGroup() as group:
        for node in chosen:
            running[node.name] = group.create_task(after_parents(node))
    return {name: ended.result() for name, ended in running.items()}


def stage_task(node: Node) -> Task[..., Any]:
    """The task of one stage under its own name, with the timeout and the retries that dvc.yaml's meta gives it."""
    return reproduce_stage.with_options(
        name=node.name,
        task_run_name=node.name,
        description=node.desc,
        timeout_seconds=node.timeout_s,
        retries=node.retries,
        retry_delay_seconds=10,
        retry_condition_fn=is_worth_a_retry,
    )


@task(cache_policy=NO_CACHE, persist_result=False)
async def reproduce_stage(name: str, why: Sequence[str], force: bool) -> State[Any]:
    """Have DVC reproduce the stage `name`; without a reason in `why` nothing is started."""
    if not why:
        return Completed(name="Skipped", message="up to date", data=None)
    log = get_run_logger()
    log.info("%s: %s", name, "; ".join(why[:5]) + (f" and {len(why) - 5} more" if len(why) > 5 else ""))
    progress = await artifacts.Progress.start(f"{artifact_key(name)}-progress", 1, f"Steps of {name}")

    def say(line: str) -> None:
        log.info("%s", line)
        progress.read(line)

    try:
        ending = await reproduce(name, force=force, say=say)
    finally:
        await progress.close()
    if ending.kind == "Failed":
        return Failed(message=f"stage {name} failed: {ending.last[-1]}", data=Broken(name, ending))
    if ending.kind == "Stopped":
        return Cancelled(name="Stopped", message=f"stage {name} was stopped", data=Broken(name, ending))
    await progress.advance()
    return Completed(name=ending.kind, data=None)


def artifact_key(name: str) -> str:
    """`name` in the only letters an artifact's key may have: lowercase, digits, dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def is_worth_a_retry(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
    """A retry helps against the world (timeout, network: any exit code but 2), never against a wrong input."""
    return not (isinstance(state.data, Broken) and state.data.ending.exit_code == 2)


def summary(states: Mapping[str, State]) -> str:
    """`3 Ran, 1 Cached, 2 Skipped`."""
    names = [state.name or "" for state in states.values()]
    return ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the flow here and say on one screen how it ended. Returns 0, or the failing stage's exit code."""
    parser = argparse.ArgumentParser(prog="python -m flows.pipeline", description=pipeline.__doc__)
    parser.add_argument("--from", dest="first", metavar="STAGE")
    parser.add_argument("--until", dest="last", metavar="STAGE")
    parser.add_argument("--force", action="append", default=[], metavar="STAGE")
    asked = parser.parse_args(argv)
    try:
        return asyncio.run(_run(asked.first, asked.last, tuple(asked.force)))
    except RatchetError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("stopped; what was finished is kept; next: ratchet run", file=sys.stderr)
        return 130


async def _run(first: str | None, last: str | None, force: tuple[str, ...]) -> int:
    state: State[Any] = await pipeline(first, last, force, return_state=True)  # pyright: ignore[reportGeneralTypeIssues]
    if state.is_completed():
        print(f"pipeline: {state.message}")
        print(results(Path.cwd()))
        say_next("ratchet report --open")
        return 0
    if state.is_failed():
        return report_failure(state.message or "", await state.aresult(raise_on_failure=False))
    stopped = await state.aresult(raise_on_failure=False)
    if isinstance(stopped, Broken):
        return report_stop(stopped)
    raise KeyboardInterrupt


def report_stop(stopped: Broken) -> int:
    """Say, in the stage's own words, what was saved, and what to type next. Returns 130."""
    said = "\n".join(line for line in stopped.ending.last if "stopped" in line) or stopped.ending.last[-1]
    print(f"stage {stopped.stage} was stopped:\n{said}\nnext: ratchet run (goes on where it stopped)", file=sys.stderr)
    return stopped.ending.exit_code


def report_failure(message: str, cause: object) -> int:
    """Say what broke, the stage's own words first, and what to type next. Returns the exit code."""
    next_command = "next: mend it and type `ratchet run`; finished stages are not repeated"
    if not isinstance(cause, Broken):
        print(f"{message}\n{next_command}", file=sys.stderr)
        return 1
    said = "\n".join(cause.ending.last)
    print(
        f"stage {cause.stage} failed:\n{said}\n{next_command}\n  all of it: ratchet logs {cause.stage}", file=sys.stderr
    )
    return cause.ending.exit_code if 0 < cause.ending.exit_code < 128 else 1


if __name__ == "__main__":
    sys.exit(main())
