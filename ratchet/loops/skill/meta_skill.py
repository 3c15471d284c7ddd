"""Phase meta_skill: what an epoch taught the optimizer about proposing, kept for the next epoch. Agents never see it.

First written when the third epoch begins, from the second: with two epochs or fewer it costs nothing.
Refuses to know how lessons are drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.loops.skill.records import Asked, Memory, Optimizer

FIRST_EPOCH = 3


def meta_skill(memory: Memory, epoch: int, history: Sequence[Mapping[str, Any]], optimizer: Optimizer) -> Asked[str]:
    """The lessons for `epoch` (from 1) out of the records of the epoch before; the empty text before `FIRST_EPOCH`."""
    steps = [row for row in history if row.get("epoch") == epoch - 1]
    if epoch < FIRST_EPOCH or not steps:
        return Asked("")
    return optimizer.remember(memory, steps)
