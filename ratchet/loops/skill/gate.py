"""Phase gate: does the candidate replace the document? Pure arithmetic on scores per validation task.

`paired` knows the noise: a no-op passes at most 1 − confidence of the time. `strict` is the published rule, kept for
comparison: strictly greater, which a no-op under a sampling agent passes half of the time, less ties. Ties are rejected
by both. Refuses to know what a document is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from ratchet.core.seeds import derive
from ratchet.loops.skill.records import Action, Row

EXACT_UP_TO = 12
"""Sign flips are enumerated up to so many differing tasks: 4,096 sums."""
DRAWS = 20_000


class Rule(StrEnum):
    """How a difference is judged."""

    PAIRED = "paired"
    STRICT = "strict"


class Metric(StrEnum):
    """Which score of a row the gate looks at."""

    HARD = "hard"
    SOFT = "soft"
    MIXED = "mixed"


@dataclass(frozen=True)
class Gate:
    """The rule, the metric, the weight of soft in mixed, and the confidence that `paired` asks for."""

    rule: Rule = Rule.PAIRED
    metric: Metric = Metric.HARD
    mixed_weight: float = 0.5
    confidence: float = 0.95
    seed: int = 0

    def values(self, rows: Sequence[Row]) -> list[float]:
        """The metric of each row, 0 to 1."""
        weight = {Metric.HARD: 0.0, Metric.SOFT: 1.0, Metric.MIXED: self.mixed_weight}[self.metric]
        return [(1 - weight) * row.hard + weight * row.soft for row in rows]


@dataclass(frozen=True)
class Verdict:
    """What the gate decided on means, with `p` = the chance of such a gain when nothing changed (1.0 for strict)."""

    action: Action
    score: float
    delta: float
    p: float
    reason: str


def decide(gate: Gate, incumbent: Sequence[float], candidate: Sequence[float], best: float, step: int) -> Verdict:
    """The verdict on `candidate` against `incumbent`, both per task in one order; `best`: the best mean so far.

    Raises ValueError when they are not of one length, empty, or no finite numbers: 0.0 is a score, NaN is none.
    """
    if len(incumbent) != len(candidate) or not candidate or not all(map(math.isfinite, [*incumbent, *candidate])):
        raise ValueError(f"{len(incumbent)} against {len(candidate)} scores")
    score, before = sum(candidate) / len(candidate), sum(incumbent) / len(incumbent)
    delta = score - before
    if delta <= 0:
        return Verdict(Action.REJECT, score, delta, 1.0, "not better than the present document")
    if gate.rule is Rule.PAIRED:
        differences = [new - old for old, new in zip(incumbent, candidate, strict=True)]
        p = sign_flip_p(differences, derive(gate.seed, "gate", step))
        if p > 1 - gate.confidence:
            return Verdict(Action.REJECT, score, delta, p, f"a gain as large comes by chance with p = {p:.3f}")
        return Verdict(_accepted(score, best), score, delta, p, f"p = {p:.2g}")
    return Verdict(_accepted(score, best), score, delta, 1.0, "strictly greater")


def _accepted(score: float, best: float) -> Action:
    return Action.ACCEPT_NEW_BEST if score > best else Action.ACCEPT


def sign_flip_p(differences: Sequence[float], seed: int) -> float:
    """P(sum ≥ the one seen) when the sign of every difference is a fair coin: Fisher's randomisation test, one-sided.

    Equal sizes (hard scores) give the exact binomial tail, few differences an exact count, others `DRAWS` draws with
    the (hits + 1) / (draws + 1) estimate, which never claims 0.
    """
    sizes = [abs(value) for value in differences if value]
    if not sizes:
        return 1.0
    seen, slack = sum(differences), 1e-12
    if max(sizes) - min(sizes) < slack:
        wins, n = sum(value > 0 for value in differences), len(sizes)
        return sum(math.comb(n, k) for k in range(wins, n + 1)) / 2**n
    values = np.array(sizes)
    if len(sizes) <= EXACT_UP_TO:
        signs = 1 - 2 * ((np.arange(2 ** len(sizes))[:, None] >> np.arange(len(sizes))) & 1)
        return float(np.mean(signs @ values >= seen - slack))
    draws = np.random.default_rng(seed).integers(0, 2, (DRAWS, len(sizes))) * 2 - 1
    return float((np.sum(draws @ values >= seen - slack) + 1) / (DRAWS + 1))
