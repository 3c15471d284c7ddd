"""What the agents earn on held-out items, and how sure that is. A random stream of its own, the same at every look, so
that two looks compare in pairs.

Refuses to know training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ratchet.core.seeds import derive
from ratchet.loops.team.rollout import evaluation_plan, rollout
from ratchet.loops.team.tasks.protocol import Task
from ratchet.loops.team.team import Team

RESAMPLES = 10_000
Returns = list[list[float]]
"""[item][sample]: the sum of an episode's rewards."""


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float

    def public(self) -> dict[str, float]:
        """As JSON."""
        return {"mean": self.mean, "low": self.low, "high": self.high}


def evaluate(team: Team, task: Task, items: int, samples: int) -> Returns:
    """Returns of `samples` episodes of each of the first `items` held-out items."""
    chosen = list(enumerate(task.evaluation[:items]))
    if not chosen:
        return []
    return [root.returns for root in rollout(team, task, chosen, evaluation_plan(samples))]


def estimate(values: Sequence[float], seed: int) -> Estimate:
    """Mean of `values`, one per item, with a percentile bootstrap over items (Efron 1979)."""
    numbers = np.asarray(values, dtype=np.float64)
    generator = np.random.Generator(np.random.Philox(key=derive(seed, "bootstrap", len(numbers))))
    places = generator.integers(0, len(numbers), size=(RESAMPLES, len(numbers)))
    low, high = np.quantile(numbers[places].mean(-1), [0.025, 0.975])
    return Estimate(float(numbers.mean()), float(low), float(high))


def by_item(returns: Returns) -> list[float]:
    """The mean return of each item."""
    return [math.fsum(row) / len(row) for row in returns]


def compared(untrained: Returns, trained: Returns, seed: int) -> dict[str, Any]:
    """Both looks at the same items and samples, and the rise, paired over items."""
    before, after = by_item(untrained), by_item(trained)
    rises = [late - early for early, late in zip(before, after, strict=True)]
    return {
        "items": len(before),
        "samples": len(untrained[0]),
        "untrained": estimate(before, seed).public(),
        "trained": estimate(after, seed).public(),
        "rise": estimate(rises, seed).public(),
    }
