"""When a loss says that training has failed: it is no number, or it has exploded. Pure; refuses to know models.

The guard's memory is a list of numbers that travels in the checkpoint, so a resumed run judges as an unbroken one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

WINDOW = 50
ENOUGH = 10
FLOOR_NATS = 1.0


def diverged(loss: float, metrics: Mapping[str, float], recent: Sequence[float], ratio: float) -> str | None:
    """Why a step with this loss (nats per token) and these metrics has failed, or None.

    `recent`: the losses before it. Exploding is more than `ratio` times their median, once there are 10 of them; a
    median under 1 nat counts as 1, since small losses jump by large factors.
    """
    for name, value in {"loss": loss, **metrics}.items():
        if not math.isfinite(value):
            return f"{name} is {value}"
    if len(recent) < ENOUGH:
        return None
    usual = max(median(recent), FLOOR_NATS)
    if loss > ratio * usual:
        return (
            f"loss {loss:.4g} is over {ratio:g} times the median of the last {len(recent)} steps, {median(recent):.4g}"
        )
    return None


def remembered(recent: Sequence[float], loss: float) -> list[float]:
    """The losses to keep after one more step."""
    return [*recent, loss][-WINDOW:]
