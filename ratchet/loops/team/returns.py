"""From rewards to advantages: joint actions, returns over turns, what a completion earned, what a group makes of it.

Pure arithmetic on lists of numbers, in float64. Refuses to know models and texts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from ratchet.loops.team.parameters import AdvantageMode, JointMode

STANDARD_DEVIATION_FLOOR = 1e-6
Combo = tuple[int, ...]
"""Which completion of each agent makes a joint action."""


def joint_actions(agents: int, generations: int, mode: JointMode) -> list[Combo]:
    """The joint actions of one node: `aligned` (j, …, j), G of them; `cross` all G^N, the last agent fastest."""
    if mode is JointMode.ALIGNED:
        return [(j,) * agents for j in range(generations)]
    return list(itertools.product(range(generations), repeat=agents))


def discounted(rewards: Sequence[float], children: Sequence[Sequence[float] | None], discount: float) -> list[float]:
    """The return of each joint action: its reward, plus `discount` times the mean return of the node it led to.

    `children`: the returns of that node, None where the branch ended. Raises ValueError when lengths differ.
    """
    pairs = zip(rewards, children, strict=True)
    return [reward + (discount * _mean(child) if child else 0.0) for reward, child in pairs]


def per_completion(returns: Sequence[float], combos: Sequence[Combo], generations: int) -> list[list[float]]:
    """What each completion of each agent earned [N][G]: the sum of the returns of the joint actions it was part of."""
    agents = len(combos[0])
    earned = [[0.0] * generations for _ in range(agents)]
    for total, combo in zip(returns, combos, strict=True):
        for agent, generation in enumerate(combo):
            earned[agent][generation] += total
    return earned


def advantages(returns: Sequence[float], mode: AdvantageMode, *, normalise: bool) -> list[float]:
    """The advantages of one group of completions. A group of equal returns says nothing: all 0 unless kept `raw`.

    `normalise`: standardised with the population's deviation, which is at least 1e-6. It cancels the shift and the
    scale in which the modes differ: with it all four are the same.
    """
    equal = max(returns) == min(returns)
    if equal and (normalise or mode is not AdvantageMode.RAW):
        return [0.0] * len(returns)
    found = _shifted(returns, mode)
    if normalise:
        mean, spread = _mean(found), max(deviation(found), STANDARD_DEVIATION_FLOOR)
        found = [(value - mean) / spread for value in found]
    return found


def _shifted(returns: Sequence[float], mode: AdvantageMode) -> list[float]:
    if mode is AdvantageMode.RAW:
        return list(returns)
    if mode is AdvantageMode.MAX:
        return [value - max(returns) for value in returns]
    mean, size = _mean(returns), len(returns)
    scale = size / (size - 1) if mode is AdvantageMode.RLOO else 1.0  # value − mean of the others
    return [(value - mean) * scale for value in returns]


def deviation(values: Sequence[float]) -> float:
    """The population's standard deviation."""
    mean = _mean(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
