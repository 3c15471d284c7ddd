"""What a person should see in a loop's tables: a finding has its numbers and a remedy.

Each loop's findings are pure functions of its tables, in a module of their own beside this one. Refuses to know any
loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from ratchet.core.errors import InputError

Array = npt.NDArray[np.float64]

WINDOW, ENOUGH = 50, 10
"""Rows that a spike is measured against, and how many there must be."""
SLOWER, FEW_ROWS = 0.85, 12
"""Median speed of the last third against the first, at most; the first row, which may compile, is left out."""


class Severity(StrEnum):
    """How much it matters."""

    WARNING = "warning"
    """The result may be wrong, or the time was lost."""
    NOTE = "note"


class Found(NamedTuple):
    """One finding. `do` begins with a verb."""

    severity: Severity
    what: str
    evidence: str
    do: str

    @property
    def sentence(self) -> str:
        """All of it on one line."""
        return f"{self.what}: {self.evidence}; {self.do}"

    @property
    def line(self) -> str:
        """The sentence with its severity before it, for a terminal."""
        return f"{'ALERT' if self.severity is Severity.WARNING else 'NOTE'}: {self.sentence}"


def plain(found: Iterable[Found]) -> list[dict[str, str]]:
    """`found` for a JSON file."""
    return [{name: str(value) for name, value in each._asdict().items()} for each in found]


def read(value: object, where: Path, do: str) -> list[Found]:
    """What `plain` gave, as the file `where` holds it. Raises InputError when it is something else."""
    try:
        told = cast("Sequence[dict[str, Any]]", value)
        return [Found(Severity(each["severity"]), *(str(each[name]) for name in Found._fields[1:])) for each in told]
    except (TypeError, KeyError, ValueError):
        raise InputError(where, f"alerts is {value!r}, no list of findings", do) from None


def thirds(values: pd.Series, least: int) -> tuple[float, float] | None:
    """Means of the first and of the last third; None for fewer than `least` rows."""
    if len(values) < least:
        return None
    third = max(1, len(values) // 3)
    return float(values.iloc[:third].mean()), float(values.iloc[-third:].mean())


def slowing(speed: pd.Series, doing: str) -> Found | None:
    """A speed, in tokens a second, that fell within the run. Medians, so a checkpoint now and then is no fall."""
    steady = array(speed)[1:]
    if len(steady) < FEW_ROWS:
        return None
    third = len(steady) // 3
    first, last = float(np.median(steady[:third])), float(np.median(steady[-third:]))
    if last > SLOWER * first:
        return None
    return Found(
        Severity.NOTE,
        f"{doing} slowed down",
        f"from {first:,.0f} to {last:,.0f} tokens/s, medians of the first and of the last third",
        "look for another process, for swapping and for heat on that machine; the result is the same",
    )


def spikes(values: Array, ratio: float, floor: float) -> npt.NDArray[np.int64]:
    """Places above `ratio` times the median of the window before them, that median at least `floor`."""
    before = pd.Series(values).rolling(WINDOW, min_periods=ENOUGH).median().shift(1).to_numpy()
    with np.errstate(invalid="ignore"):
        return np.flatnonzero(values > ratio * np.maximum(before, floor))


def spike_sentence(name: str, values: Array, at: npt.NDArray[np.int64], place: pd.Series, noun: str) -> str:
    """How many spikes there are at `at`, and the highest of them; `place`: the number of each row, a `noun`."""
    highest = int(at[np.argmax(values[at])])
    usual = float(np.nanmedian(values[max(0, highest - WINDOW) : highest]))
    count = f"{len(at)} spike{'s' if len(at) > 1 else ''} of the {name}"
    return f"{count}, up to {values[highest]:.3g} at {noun} {place.iloc[highest]:,} after a median of {usual:.3g}"


def array(values: pd.Series) -> Array:
    """The numbers of a column; what is empty is NaN."""
    return values.to_numpy(dtype=np.float64)
