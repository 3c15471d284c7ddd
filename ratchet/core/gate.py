"""The gate: is a candidate better than the incumbent beyond the noise? Pure arithmetic on scores, lower is better.

Refuses to know where a score comes from. NaN is a crash, 0.0 is a score, no incumbent makes a baseline.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Literal

Decision = Literal["keep", "discard", "confirm", "crash", "baseline"]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """`sd` of the score over `seeds` baseline runs that differ in their seed alone; a tie is |d| ≤ `tie` · sd and then
    counts as simpler with `fewer_lines` less. `paired`: the candidate's bootstrap bound is required."""

    sd: float
    seeds: int
    confidence: float = 0.95
    tie: float = 0.1
    fewer_lines: int = 3
    paired: bool = True

    @property
    def threshold(self) -> float:
        """t(confidence, seeds − 1) · √2 · sd: the difference of two noisy scores must be above it."""
        return student_quantile(self.confidence, self.seeds - 1) * math.sqrt(2) * self.sd


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One judged version. `score` None = it gave none. `lower`: 95 % lower bound of the paired gain over the incumbent.
    `lines`: its length. `confirmed`: the score is already a mean over a fresh seed."""

    score: float | None
    lower: float | None = None
    lines: int = 0
    confirmed: bool = False


@dataclass(frozen=True)
class Verdict:
    """What to do with the candidate, why, and whether it is progress (a keep for simplicity is not). `gain` = d."""

    decision: Decision
    reason: str
    gain: float | None = None
    progress: bool = False


def decide(rule: Rule, incumbent: Measured | None, candidate: Measured) -> Verdict:
    """The verdict on `candidate` against `incumbent` (None: there is none yet). Raises ValueError for a rule or an
    incumbent that is no number, or when a paired bound is required and missing."""
    if candidate.score is None or not math.isfinite(candidate.score):
        return Verdict("crash", f"the score is {candidate.score}")
    if incumbent is None:
        return Verdict("baseline", "there is no incumbent", progress=True)
    if incumbent.score is None or not math.isfinite(incumbent.score) or not math.isfinite(rule.threshold):
        raise ValueError(f"incumbent {incumbent.score}, threshold {rule.threshold}")
    if rule.paired and candidate.lower is None:
        raise ValueError("the rule asks for a paired lower bound and the candidate has none")
    gain = incumbent.score - candidate.score
    fewer = incumbent.lines - candidate.lines
    if abs(gain) <= rule.tie * rule.sd and fewer >= rule.fewer_lines:
        return Verdict("keep", f"simpler: a tie with {fewer} fewer lines", gain)
    if gain <= rule.threshold:
        return Verdict("discard", f"the gain {gain:.6g} is not above the threshold {rule.threshold:.6g}", gain)
    if candidate.lower is not None and not candidate.lower > 0:
        return Verdict("discard", f"the paired lower bound {candidate.lower:.6g} is not above 0", gain)
    if gain <= 2 * rule.threshold and not candidate.confirmed:
        return Verdict("confirm", f"the gain {gain:.6g} is within twice the threshold {rule.threshold:.6g}", gain)
    return Verdict("keep", f"the gain {gain:.6g} is above the threshold {rule.threshold:.6g}", gain, progress=True)


@cache
def student_quantile(p: float, df: int) -> float:
    """x with P(T ≤ x) = p for Student's t with `df` ≥ 1 degrees of freedom, 0.5 ≤ p < 1, to 1e-12 relative."""
    if not (0.5 <= p < 1 and df >= 1):
        raise ValueError(f"p = {p}, df = {df}: needs 0.5 ≤ p < 1 and at least 2 seeds")
    low, high = 0.0, math.pi / 2  # the angle atan(x / √df), in which the distribution is a finite sum
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if 0.5 + _central(middle, df) / 2 < p else (low, middle)
    return math.tan(low) * math.sqrt(df)


def _central(angle: float, df: int) -> float:
    """P(|T| ≤ tan(angle)·√df), by Abramowitz and Stegun 26.7.3 and 26.7.4."""
    odd = df % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for k in range((df - odd) // 2):
        total += term
        term *= math.cos(angle) ** 2 * ((2 * k + 2) / (2 * k + 3) if odd else (2 * k + 1) / (2 * k + 2))
    series = math.sin(angle) * total
    return 2 / math.pi * (angle + series) if odd else series
