"""Figures with their 95 % intervals, found among the dotted names of a version's metrics.

Three ways of writing one occur: a mean with low and high, a value with a pair beside it, a gain with lower and upper.
Refuses to know which stage wrote what.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

PAIR = "_interval"
ENDS = (("mean", "low", "high"), ("gain", "lower", "upper"))


class Figure(NamedTuple):
    """A value, and its interval where it has one."""

    value: Any
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return str(self.value)
        return f"{self.value:.6g} ({self.low:.4g} to {self.high:.4g})"


def figures(metrics: Mapping[str, Any]) -> dict[str, Figure]:
    """Each metric by its name, in order; the ends of an interval stand with their figure, not by themselves."""
    told = {name: Figure(value) for name, value in metrics.items()}
    for name, value in metrics.items():
        stem, _, last = name.rpartition(".")
        for middle, low, high in ENDS:
            ends = [f"{stem}.{end}" for end in (low, high)]
            if last == middle and stem and all(end in metrics for end in ends):
                told[name] = Figure(value, *(told.pop(end).value for end in ends))
        if name + PAIR in metrics:
            told[name] = Figure(value, *told.pop(name + PAIR).value)
    return told
