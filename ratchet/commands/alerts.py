"""`ratchet alerts`: what a person should see in the results that are here, of every loop, on one screen.

A command of its own: `ratchet results` reads anybody's ledger, and alerts need what stands beside it. Refuses to judge:
a result with alerts is a result, so the exit code is 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ratchet.commands.project import enter_project, find_copy, print_json, print_table, say_next
from ratchet.core.errors import InputError
from ratchet.tables import (
    findings,
    history,
    metrics,
    research_findings,
    results,
    team_history,
    timing,
    training_findings,
)
from ratchet.tables.findings import Found, Severity
from ratchet.tables.team_findings import in_team_timing

HISTORY, STEPS = Path("data/train/history.tsv"), Path("data/train/timing/steps.tsv")
TRAIN, EVALUATE = Path("metrics/train.json"), Path("metrics/evaluate.json")
RESULTS, ITERATE = Path("data/iterate/results.tsv"), Path("metrics/iterate.json")
SUMMARIES = {"skill": Path("data/skill/summary.json"), "team": Path("data/team/summary.json")}
"""What both loops publish: their stages have looked at their own histories."""
TEAM_TIMING = Path("data/team-timing.json")
WHERE = {"train": HISTORY, "evaluate": EVALUATE, "iterate": RESULTS, **SUMMARIES}


class Alert(NamedTuple):
    """One line: what was found in the tables of `stage`."""

    stage: str
    found: Found

    def plain(self) -> dict[str, str]:
        """It for a program, all of it on one level."""
        return {"stage": self.stage, **findings.plain([self.found])[0]}


def alerts(*, profile: str | None, overrides: Sequence[str], as_json: bool) -> None:
    """Print the alerts on what the stages have published. Raises InputError: nothing is there, or a table is wrong."""
    project = enter_project()
    root = find_copy(project, profile, overrides)
    looked = looked_at(root)
    if not looked:
        raise InputError(root, "no stage has published a table yet", "type `ratchet run`")
    found = found_in(root)
    if as_json:
        print_json({"looked_at": looked, "alerts": [alert.plain() for alert in found]})
        return
    if found:
        print_table(("stage", "", "what"), [(stage, _sign(each), each.sentence) for stage, each in found])
    else:
        print("no alerts")
    print(f"looked at: {', '.join(looked)}")
    say_next("ratchet report --open")


def looked_at(root: Path) -> list[str]:
    """The stages that have published what alerts look at, in the project at `root`."""
    return [stage for stage, path in WHERE.items() if (root / path).is_file()]


def found_in(root: Path) -> list[Alert]:
    """The alerts on all of that. Raises InputError when a table is wrong."""
    return [Alert(stage, found) for stage in looked_at(root) for found in _of(stage, root)]


def _of(stage: str, root: Path) -> Iterator[Found]:
    if stage == "train":
        steps = timing.read_steps(root / STEPS) if (root / STEPS).is_file() else None
        yield from training_findings.in_training(history.read(root / HISTORY), steps)
    elif stage == "evaluate":
        read = (metrics.read(root / path) for path in (EVALUATE, TRAIN))
        yield from training_findings.in_evaluation(*read)
    elif stage == "iterate":
        rows, told = results.read(root / RESULTS), metrics.read(root / ITERATE)
        yield from research_findings.in_research(rows, told)
    else:
        yield from _summarised(root / SUMMARIES[stage])
        if stage == "team" and (root / TEAM_TIMING).is_file():
            yield from in_team_timing(team_history.read_timing(root / TEAM_TIMING))


def _summarised(path: Path) -> list[Found]:
    """What a stage found in its own history. Raises InputError when its summary is none."""
    do = f"run `dvc repro --force {path.parent.name}` to write it anew"
    try:
        told: Any = json.loads(path.read_text(encoding="utf-8"))
        alerts = told.get("alerts", ())
    except (ValueError, AttributeError) as error:
        raise InputError(path, f"is no summary ({error})", do) from None
    return findings.read(alerts, path, do)


def _sign(found: Found) -> str:
    return "!!" if found.severity is Severity.WARNING else "note"
