"""What a schedule starts: bring the pipeline, or a part of it, up to date in a copy, and keep its tables on a branch.

Looks at the tree, fetches code when asked to, lets `ratchet run` do the work, and commits what git keeps of the results
to a branch under ratchet/, never to the one that is checked out. Refuses to know any stage.
`prefect.yaml` has the deployments (docs/scheduling.md).
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from pathlib import Path
from typing import Any, Literal

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed, Failed
from prefect.tasks import exponential_backoff

from flows import sigterm
from flows.stage_process import LAST_LINES, STOPPED_CODES, run_group
from ratchet.commands.results_branch import check_branch, commit_results, fast_forward, refuse_dirty
from ratchet.copies import COPIES, name_of
from ratchet.settings import child_environment

Dirty = Literal["refuse", "mark"]
RUN_VARIABLES = ("PREFECT__FLOW_RUN_ID", "PREFECT__FLOW_ENTRYPOINT")
"""What tells a process that it is this flow's run: `ratchet run` starts a flow that has a run of its own."""


@flow(name="scheduled", persist_result=False, validate_parameters=True)
async def scheduled(
    first: str | None = None,
    last: str | None = None,
    profile: str | None = None,
    overrides: list[str] = [],  # noqa: B006  (Prefect shows it; nothing changes it)
    update: bool = False,
    dirty: Dirty = "mark",
    branch: str | None = None,
) -> State[Any]:
    """Run what has changed between the stages `first` and `last`, in a copy when there is a profile or an override.

    Ends Completed, Stopped (Cancelled) or Failed with the last lines said. What was interrupted goes on in the next run
    with the same parameters. Raises InputError for a dirty tree that is to be refused.

    Args:
        first: stage to begin at; empty is the first one
        last: stage to end with; empty is the last one
        profile: a file of profiles/, without .yaml
        overrides: section.key=value over params.yaml; {night} is the number of results on the branch so far
        update: fast-forward the checkout from its upstream first
        dirty: refuse a tree with uncommitted changes, or mark its results
        branch: ratchet/… that gets tables and lock of what ran; empty is none
    """
    with sigterm.cancels_this_task():
        log, project = get_run_logger(), Path.cwd()
        night = check_branch(project, branch) if branch is not None else 0
        overrides = [override.replace("{night}", str(night)) for override in overrides]
        if dirty == "refuse":
            refuse_dirty(project)
        if update:
            log.info("%s", await fetch(str(project)))
        code, said = await run(_command(first, last, profile, overrides))
        if code in STOPPED_CODES:
            return Cancelled(name="Stopped", message="stopped; the next run goes on", data=None)
        if code:
            return Failed(message=f"`ratchet run` ended with exit code {code}: {said[-1]}", data=list(said))
        if branch is not None:
            made_in = COPIES / name_of(profile, overrides) if profile or overrides else Path()
            log.info("%s", await asyncio.to_thread(commit_results, project, made_in, branch))
        return Completed(message=said[-1], data=None)


@task(cache_policy=NO_CACHE, persist_result=False, retries=3, retry_delay_seconds=exponential_backoff(20))
async def fetch(project: str) -> str:
    """The checkout's upstream, by fast-forward alone: the one step here that needs a network, so it is retried."""
    return await asyncio.to_thread(fast_forward, Path(project))


def _command(first: str | None, last: str | None, profile: str | None, overrides: list[str]) -> list[str]:
    found = [sys.executable, "-m", "ratchet.cli", "run"]
    for option, value in (("--from", first), ("--until", last), ("--profile", profile)):
        found += [option, value] if value else []
    return found + [word for override in overrides for word in ("-S", override)]


async def run(command: list[str]) -> tuple[int, tuple[str, ...]]:
    """Exit code and last lines of `command`, each line told to Prefect."""
    log = get_run_logger()
    environment = {name: value for name, value in child_environment().items() if name not in RUN_VARIABLES}
    seen: deque[str] = deque(["it said nothing"], maxlen=LAST_LINES)

    def heard(line: str) -> None:
        log.info("%s", line)
        seen.append(line)

    return await run_group(command, environment, heard), tuple(seen)
