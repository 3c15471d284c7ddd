"""What a ledger comes to: running best, baselines that begin anew, largest improvements, cost so far.

Knows arithmetic on rows; refuses to know files, and to call better what only began from another baseline.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ratchet.core.errors import InputError
from ratchet.tables import columns, ledger_words
from ratchet.tables.ledger_lines import name_lines
from ratchet.tables.ledgers import Ledger

Array = npt.NDArray[np.float64]

COSTS = ("cost", "cost_usd", "usd", "money", "price")


class Kind(StrEnum):
    """What a row is in the course of the session."""

    BASELINE = "baseline"
    """Where a segment begins: the first kept row, one that says so, or a kept one that is worse than the best."""
    PROGRESS = "progress"
    SIMPLER = "simpler"
    """Kept, and not better: a tie, or fewer lines."""
    DISCARD = "discard"
    CRASH = "crash"


@dataclass(frozen=True)
class Hit:
    """One kept improvement. `gain`: bits per byte below the best before it; `share` of its segment's whole gain."""

    number: int
    line: int
    commit: str
    description: str
    val_bpb: float
    gain: float
    share: float


@dataclass(frozen=True)
class Segment:
    """What one baseline led to. `first`, `last`: numbers of its rows."""

    first: int
    last: int
    baseline: float
    best: float
    best_commit: str

    @property
    def gain(self) -> float:
        """How far the best lies below the baseline."""
        return self.baseline - self.best


@dataclass(frozen=True)
class Course:
    """A ledger with its course. `table` has four more columns than the ledger's: number (the first row is 0), kind,
    best (running, NaN before a row was kept), segment (counted from 0); `notes` say what is odd about it."""

    table: pd.DataFrame
    segments: tuple[Segment, ...]
    notes: tuple[str, ...]
    cost: Array | None
    """Cumulative, by row; None when no column tells it."""

    @property
    def best(self) -> float | None:
        """The best of the last segment; None when nothing was kept."""
        return self.segments[-1].best if self.segments else None

    def count(self, *kinds: Kind) -> int:
        """Rows of these kinds."""
        return int(self.table["kind"].isin(kinds).sum())

    def hits(self, most: int = 10) -> list[Hit]:
        """The largest improvements, largest first."""
        rows = self.table[self.table["kind"] == Kind.PROGRESS].assign(gain=lambda t: t["before"] - t["val_bpb"])
        rows = rows.sort_values(["gain", "number"], ascending=[False, True]).head(most)
        return [
            Hit(
                number=int(row["number"]),
                line=int(row["line"]),
                commit=row["commit"],
                description=row["description"],
                val_bpb=float(row["val_bpb"]),
                gain=float(row["gain"]),
                share=float(row["gain"]) / self.segments[int(row["segment"])].gain,
            )
            for row in rows.to_dict("records")
        ]

    def summary(self, hits: int = 10) -> dict[str, Any]:
        """For a program: counts, baseline and best of each segment, top hits, cost."""
        cost = None if self.cost is None else float(self.cost[-1])
        return {
            "rows": len(self.table),
            "experiments": self.experiments,
            "kept": self.count(Kind.PROGRESS, Kind.SIMPLER),
            "progress": self.count(Kind.PROGRESS),
            "discarded": self.count(Kind.DISCARD),
            "crashed": self.count(Kind.CRASH),
            "best": self.best,
            "best_commit": self.segments[-1].best_commit if self.segments else None,
            "segments": [asdict(segment) | {"gain": segment.gain} for segment in self.segments],
            "hits": [asdict(hit) for hit in self.hits(hits)],
            "cost": cost,
        }

    @property
    def experiments(self) -> int:
        """Rows beside the baselines."""
        return len(self.table) - self.count(Kind.BASELINE)


def course(ledger: Ledger) -> Course:
    """The course of a ledger, row by row."""
    table = ledger.table.reset_index(drop=True)
    told = "parent" in table and "reason" in table  # ours: a row says itself that it is only simpler
    walk = _Walk(told=told)
    for row in table.to_dict("records"):
        walk.take(row)
    table = table.assign(
        number=np.arange(len(table)), kind=walk.kinds, best=walk.bests, before=walk.befores, segment=walk.places
    )
    return Course(table, tuple(walk.segments(table)), tuple(walk.notes()), _cost(table))


class _Walk:
    """Goes down the rows once."""

    def __init__(self, *, told: bool) -> None:
        self._told = told
        self._best, self._segment = math.nan, -1
        self.kinds: list[str] = []
        self.bests: list[float] = []
        self.befores: list[float] = []
        self.places: list[int] = []
        self._worse: list[tuple[int, float, float]] = []

    def take(self, row: dict[Any, Any]) -> None:
        """The next row."""
        score, before = float(row["val_bpb"]), self._best
        kind = self._kind(row, score)
        if kind is Kind.BASELINE:
            self._segment += 1
            self._best = score
        elif kind in (Kind.PROGRESS, Kind.SIMPLER):
            self._best = min(self._best, score)
        self.kinds.append(str(kind))
        self.befores.append(before)
        self.bests.append(self._best)
        self.places.append(max(0, self._segment))

    def _kind(self, row: dict[Any, Any], score: float) -> Kind:
        if row["status"] != ledger_words.KEEP:
            return Kind(row["status"])
        if math.isnan(self._best) or row["baseline"]:
            return Kind.BASELINE
        if self._told and str(row["reason"]).startswith("simpler"):
            return Kind.SIMPLER
        if score < self._best:
            return Kind.PROGRESS
        if score == self._best or self._told:
            return Kind.SIMPLER
        self._worse.append((int(row["line"]), score, self._best))
        return Kind.BASELINE

    def segments(self, table: pd.DataFrame) -> list[Segment]:
        """Each baseline with what came of it."""
        found: list[Segment] = []
        for number in range(self._segment + 1):
            rows = table[table["segment"] == number]
            kept = rows[rows["kind"].isin((Kind.BASELINE, Kind.PROGRESS, Kind.SIMPLER))]
            best = kept.sort_values(["val_bpb", "number"]).iloc[0]
            baseline = float(kept["val_bpb"].iloc[0])
            ends = int(rows["number"].iloc[0]), int(rows["number"].iloc[-1])
            found.append(Segment(*ends, baseline, float(best["val_bpb"]), str(best["commit"])))
        return found

    def notes(self) -> list[str]:
        """What is odd about the course."""
        if self._segment < 0:
            return ["no row was kept: there is no baseline, and nothing is progress"]
        told: list[str] = []
        if self.kinds[0] != Kind.BASELINE:
            told.append("the first row is no kept one: progress counts from the first that is")
        if self._worse:
            _, score, best = self._worse[0]
            lines = name_lines([line for line, *_ in self._worse])
            told.append(
                f"{lines}: kept though worse than the best ({score:.6g} after {best:.6g}): a new baseline begins"
            )
        return told


def _cost(table: pd.DataFrame) -> Array | None:
    """Cumulative cost by row; what is no number counts as nothing."""
    try:
        name = columns.find(table, *COSTS)
    except InputError:
        return None
    return np.cumsum([_amount(cell) for cell in table[name]])


def _amount(cell: object) -> float:
    try:
        amount = ledger_words.number_of(str(cell).replace("$", "").replace("€", "").strip()) or 0.0
    except ValueError:
        return 0.0
    return max(0.0, amount)
