"""The edit budget of a step: the learning rate of a document, in edits.

A function of step and horizon alone, so that a resume cannot shift it. Refuses to know what an edit is.
"""

from __future__ import annotations

import math
from enum import StrEnum


class Scheduler(StrEnum):
    """How the budget falls from learning_rate to min_learning_rate."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


def edit_budget(scheduler: Scheduler, step: int, horizon: int, *, highest: int, lowest: int) -> int:
    """Edits that `step` (1 … horizon) may make: `highest` at the first, `lowest` at the last, halves rounded up.

    Beyond the horizon (an extension) it stays at `lowest`. Raises ValueError when step < 1 or lowest > highest.
    """
    if step < 1 or lowest > highest:
        raise ValueError(f"step {step}, budget {highest} to {lowest}")
    if step > horizon:
        return lowest
    if scheduler is Scheduler.CONSTANT or horizon == 1:
        return highest
    progress = (step - 1) / (horizon - 1)
    share = 1 - progress if scheduler is Scheduler.LINEAR else (1 + math.cos(math.pi * progress)) / 2
    return math.floor(lowest + (highest - lowest) * share + 0.5)
