"""What `iterate` left of a research session, read once and checked against itself.

Knows the files in data/iterate that a reader needs; refuses to know how any of it is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ratchet.core.errors import InputError
from ratchet.tables import improvement, ledgers, results
from ratchet.tables.improvement import Course
from ratchet.tables.metrics import carries_over

AGREEMENT = 5e-6
"""How far metrics and table may lie apart: the table has 6 places."""


@dataclass(frozen=True)
class SessionFacts:
    """One session. `rows`: results.tsv; `course`: what it comes to; `learned`: Markdown; `patches`: kept changes, by
    the name of their file, in order."""

    rows: pd.DataFrame
    course: Course
    metrics: Mapping[str, Any]
    learned: str
    patches: Mapping[str, str]

    @property
    def carries_over(self) -> bool | None:
        """Whether the gain shows on the test split; None when nothing was kept, so nothing was tested."""
        return carries_over(self.metrics)


def read(folder: Path, metrics: Mapping[str, Any]) -> SessionFacts:
    """The session in `folder`. Raises InputError when a file is missing, garbled, or of another session than
    `metrics` (metrics/iterate.json)."""
    table = folder / "results.tsv"
    rows = results.read(table)
    experiments = len(rows) - 1
    if experiments != metrics["experiments"]:
        what = f"holds {experiments} experiments, metrics/iterate.json says {metrics['experiments']}"
        raise InputError(table, what, results.REMEDY)
    baseline = float(rows["val_bpb"].iloc[0])
    if not abs(baseline - metrics["baseline_val_bpb"]) <= AGREEMENT:
        what = f"begins with {baseline:.6f} bits per byte, metrics/iterate.json with {metrics['baseline_val_bpb']:.6f}"
        raise InputError(table, what, results.REMEDY)
    patches = {
        path.stem: path.read_text(encoding="utf-8", errors="replace")
        for path in sorted((folder / "patches").glob("*.patch"))
    }
    return SessionFacts(rows, improvement.course(ledgers.ours(rows)), metrics, _text(folder / "learned.md"), patches)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        raise InputError(path, "no such file", results.REMEDY) from None
