"""`ratchet run`, `status`, `resume`: what is up to date, and handing the rest to the flow."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from ratchet.commands.project import enter_copy, enter_project, print_json, print_table, results, say_next
from ratchet.commands.runs import cells, describe, find_run
from ratchet.copies import copies
from ratchet.core.checkpoint import Resume
from ratchet.core.errors import InputError, RatchetError
from ratchet.core.rundir import list_runs
from ratchet.dag import Dag, Node, read_dag
from ratchet.settings import child_environment, settings

GIVE_WAY = ("team",)
"""Loops whose damaged newest checkpoint always gives way to the newest good one."""


class Choice(NamedTuple):
    """Which stages of the pipeline a flow looks at."""

    first: str | None = None
    last: str | None = None
    force: tuple[str, ...] = ()

    def options(self) -> list[str]:
        """As options of `python -m flows.pipeline`."""
        ends = [part for name, value in (("--from", self.first), ("--until", self.last)) if value
                for part in (name, value)]  # fmt: skip
        return [*ends, *(part for name in self.force for part in ("--force", name))]


class Accepted(NamedTuple):
    """What a resumed run may differ in from the one that was interrupted."""

    resume: Resume | None = None
    adopt_code: bool = False
    allow_inexact: bool = False


def run(choice: Choice, *, profile: str | None, overrides: Sequence[str], resume: Resume | None, dry_run: bool) -> None:
    """Bring the pipeline up to date: here, or in a copy when there is a profile or an override."""
    project = enter_project()
    shared = shared_places(project)
    if profile is not None or overrides:
        enter_copy(project, profile, overrides)
    dag = read_dag(Path.cwd())
    chosen = dag.chosen(first=choice.first, last=choice.last)
    stale = dag.stale(chosen, forced=[dag[name].name for name in choice.force])
    if dry_run:
        _print_plan(chosen, stale)
    elif not stale:
        print(f"up to date: {', '.join(node.name for node in chosen)}")
        print(results(Path.cwd()))
        say_next("ratchet report --open")
    else:
        start_flow(choice, {**shared, **({"RATCHET_RESUME": resume} if resume else {})})


def _print_plan(chosen: Sequence[Node], stale: Mapping[str, Sequence[str]]) -> None:
    rows = [(node.name, "would run" if node.name in stale else "up to date", _why(stale.get(node.name, ())))
            for node in chosen]  # fmt: skip
    print_table(("stage", "", "why"), rows)
    wrong = _print_sentences([node.name for node in chosen if node.name in stale])
    if wrong is not None:
        raise wrong
    say_next("ratchet run" if stale else "ratchet report --open")


def _print_sentences(stages: Sequence[str]) -> RatchetError | None:
    """What each of `stages` plans; the first thing that is wrong with their parameters, once all are told."""
    from ratchet.commands import params_of, plans

    known = [stage for stage in stages if stage in plans.PLANS]
    if not known:
        return None
    rows: list[tuple[str, str]] = []
    wrong: RatchetError | None = None
    document = params_of.read()
    for stage in known:
        try:
            rows.append((stage, plans.plan(stage, document) or ""))
        except RatchetError as error:
            rows.append((stage, f"cannot be planned: {error}"))
            wrong = wrong or error
    print()
    print_table(("stage", "would do"), rows)
    return wrong


def _why(reasons: Sequence[str]) -> str:
    more = f" and {len(reasons) - 4} more" if len(reasons) > 4 else ""
    return "; ".join(reasons[:4]) + more


def shared_places(project: Path) -> dict[str, str]:
    """What a copy shares with its project, as variables for the stages; call before a copy is entered.

    One cache of downloads; one folder of runs, so that every command sees every run and none goes with its copy; and
    the project's .env, which is in no copy because it may hold a secret.
    """
    here = settings()
    places = {"RATCHET_DOWNLOADS": here.downloads, "RATCHET_RUNS": here.runs, "RATCHET_ENV_FILE": here.env_file}
    return {name: str((project / path).resolve()) for name, path in places.items()}


def start_flow(choice: Choice, variables: Mapping[str, str]) -> NoReturn:
    """Become the flow, in the working directory: signals and exit code are then its own.

    `variables`: of the environment, for the stages.
    """
    sys.stdout.flush()
    command = [sys.executable, "-m", "flows.pipeline", *choice.options()]
    os.execve(sys.executable, command, child_environment(**variables))


def resume(name: str, accepted: Accepted, *, profile: str | None, overrides: Sequence[str]) -> None:
    """Continue the run `name` by running its stage; refused when something but portable keys differs."""
    project = enter_project()
    shared = shared_places(project)
    found = find_run(name, settings().runs)
    give_way = found.state == "damaged" and (accepted.resume == "auto" or found.loop in GIVE_WAY)
    if not found.resumable and not give_way:
        do = "add `--resume auto`" if found.state == "damaged" else "see `ratchet status`"
        raise InputError(found.path, f"cannot be resumed: {found.state}, {found.why}", do)
    if profile is not None or overrides:
        enter_copy(project, profile, overrides)
    dag = read_dag(Path.cwd())
    node = dag[found.loop]
    stale = dag.stale(dag.nodes)
    variables = {
        "RATCHET_RESUME_RUN": str((project / found.path).resolve()),
        "RATCHET_ADOPT_CODE": str(accepted.adopt_code).lower(),
        "RATCHET_ALLOW_INEXACT": str(accepted.allow_inexact).lower(),
        **({"RATCHET_RESUME": accepted.resume} if accepted.resume else {}),
    }
    start_flow(Choice(force=() if node.name in stale else (node.name,)), {**shared, **variables})


def status(*, as_json: bool) -> None:
    """What is up to date, what would run and why, and every run. Works while a stage runs."""
    project = enter_project()
    dag = read_dag(project)
    stages = stage_states(dag)
    runs = [describe(run) for run in list_runs(settings().runs)]
    there = [item.name for item in copies(project)]
    if as_json:
        print_json({"stages": stages, "runs": runs, "copies": there})
        return
    print_table(("stage", "state", "why"), [(row["stage"], row["state"], _why(row["why"])) for row in stages])
    if runs:
        print()
        print_table(
            ("run", "state", "steps", "age", ""),
            [cells(row) for row in runs],
        )
    if there:
        print(f"\ncopies: {', '.join(there)}")
    print()
    say_next(_next_command(stages, runs))


def stage_states(dag: Dag) -> list[dict[str, Any]]:
    """One mapping a stage: stage, state (running, changed, waiting, up to date), why, pid."""
    stale = dag.stale(dag.nodes)
    rows: list[dict[str, Any]] = []
    for node in dag.nodes:
        state, why = "up to date", list(stale.get(node.name, ()))
        if node.running:
            state, why = "running", [f"pid {node.running}"]
        elif node.name in stale:
            state = "changed" if node.changes else "waiting"
        elif elsewhere := _made_elsewhere(node):
            why = [f"made on {elsewhere}: equal bytes are promised on one platform only"]
        rows.append({"stage": node.name, "state": state, "why": why, "pid": node.running})
    return rows


def _made_elsewhere(node: Node) -> str | None:
    """The platform that a stage's provenance names, when it is not this one."""
    for path in node.outs:
        if path.name.endswith("provenance.json") and path.is_file():
            made = json.loads(path.read_text(encoding="utf-8")).get("platform")
            return made if made and made != platform.platform() else None
    return None


def _next_command(stages: Sequence[Mapping[str, Any]], runs: Sequence[Mapping[str, Any]]) -> str:
    for row in stages:
        if row["state"] == "running":
            return f"ratchet logs {row['stage']} --follow"
    if any(row["state"] != "up to date" for row in stages):
        going_on = any(run["resumable"] for run in runs)
        return "ratchet run" + (" (a run whose inputs are the same continues where it stopped)" if going_on else "")
    return "ratchet report --open"
