"""What the stage `skill` left of a training, read once and checked against itself.

Knows the files in data/skill that a reader needs; refuses to know how any of it is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ratchet.core.errors import InputError
from ratchet.tables import findings, skill_history
from ratchet.tables.findings import Found

INTERVALS = tuple((which, f"{name}_interval") for which in ("seed", "best") for name in ("hard", "contains"))


@dataclass(frozen=True)
class SkillFacts:
    """One training. `steps`: history.json as a table, `edits`: a row an edit, `document`: the best one, `diff`: from
    the seed document to it. After a dry run, which asks nobody, `steps` is None and nothing else is there."""

    metrics: Mapping[str, Any]
    summary: Mapping[str, Any]
    steps: pd.DataFrame | None
    edits: pd.DataFrame
    document: str
    diff: str
    alerts: Sequence[Found] = ()

    @property
    def baseline(self) -> float:
        """The seed document's validation score on the gate's metric."""
        return float(self.summary["baseline"]["gate_score"])


def read(folder: Path, metrics: Mapping[str, Any]) -> SkillFacts:
    """The training in `folder`. Raises InputError when a file is missing, garbled, or of another training than
    `metrics` (metrics/skill.json)."""
    if not metrics["steps"]:
        return SkillFacts(metrics, {}, None, pd.DataFrame(), _text(folder / "best_skill.md"), "")
    history = folder / "history.json"
    steps = skill_history.read(history)
    if len(steps) != metrics["steps"]:
        what = f"holds {len(steps)} steps, metrics/skill.json says {metrics['steps']}"
        raise InputError(history, what, skill_history.DO)
    _check_intervals(metrics)
    summary = skill_history.read_summary(folder / "summary.json")
    alerts = findings.read(summary.get("alerts"), folder / "summary.json", skill_history.DO)
    edits = skill_history.read_edits(folder / "edits")
    document, diff = _text(folder / "best_skill.md"), _text(folder / "skill.diff")
    return SkillFacts(metrics, summary, steps, edits, document, diff, alerts)


def _check_intervals(metrics: Mapping[str, Any]) -> None:
    """A schema holds no lists, so these are looked at here."""
    if not metrics.get("test"):
        return
    for which, name in INTERVALS:
        found = metrics["test"][which].get(name)
        if not isinstance(found, list) or len(found) != 2 or not all(isinstance(end, float | int) for end in found):
            raise InputError(
                "metrics/skill.json", f"test.{which}.{name} is {found!r}, no pair of numbers", skill_history.DO
            )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        raise InputError(path, "no such file", skill_history.DO) from None
