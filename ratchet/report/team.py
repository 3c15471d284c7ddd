"""What the stage `team` left of a training, read once and checked against itself.

Knows the files in data/team that a reader needs; refuses to know how any of it is drawn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ratchet.core.errors import InputError
from ratchet.tables import findings, team_history
from ratchet.tables.findings import Found
from ratchet.tables.team_findings import in_team_timing


@dataclass(frozen=True)
class TeamFacts:
    """One training. `history`: as ratchet.tables.team_history reads it; `resumes`: env steps of the rows with which a
    later process went on; `samples`: {epoch, env_step, item, turn, prompts, completions, reward}; `held_out`: {items,
    samples, untrained, trained, rise}, the last three {mean, low, high}, or None where nothing was held out."""

    history: pd.DataFrame
    task: str
    epochs: int
    max_new_tokens: int
    resumes: Sequence[int] = ()
    samples: Sequence[Mapping[str, Any]] = ()
    held_out: Mapping[str, Any] | None = None
    alerts: Sequence[Found] = ()


def read(folder: Path, timing: Path, metrics: Mapping[str, Any]) -> TeamFacts:
    """The training in `folder` and when it went on, from `timing`. Raises InputError when a file is missing, garbled,
    or of another training than `metrics` (metrics/team.json)."""
    history = team_history.read(folder / "history.json")
    if len(history) != metrics["updates"]:
        what = f"holds {len(history)} rows, metrics/team.json says {metrics['updates']} updates"
        raise InputError(folder / "history.json", what, team_history.DO)
    summary = _json(folder / "summary.json")
    rows = team_history.read_timing(timing)
    alerts = findings.read(summary.get("alerts"), folder / "summary.json", team_history.DO)
    samples = [json.loads(line) for line in _text(folder / "samples.jsonl").split("\n") if line]
    return TeamFacts(
        history,
        task=metrics["task"],
        epochs=summary["params"]["num_train_epochs"],
        max_new_tokens=summary["params"]["max_new_tokens"],
        resumes=[int(row["env_step"]) for row in rows if row["resumed"]],
        samples=samples,
        held_out=metrics["held_out"],
        alerts=[*alerts, *in_team_timing(rows)],
    )


def _json(path: Path) -> Any:
    try:
        return json.loads(_text(path))
    except ValueError as error:
        raise InputError(path, f"not JSON ({error})", team_history.DO) from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(path, "no such file", team_history.DO) from None
