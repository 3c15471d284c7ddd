"""The gate: a table of decisions, the threshold's quantile, how often pure noise passes, and mutants of both."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from ratchet.core.gate import Measured, Rule, Verdict, decide, student_quantile

RULE = Rule(sd=0.01, seeds=5)
THRESHOLD = 2.131846786326649 * math.sqrt(2) * 0.01
BASE = Measured(score=1.0, lines=100)
Decide = Callable[[Rule, Measured | None, Measured], Verdict]

TABLE = [
    (BASE, Measured(score=float("nan"), lower=1.0), "crash", False),
    (BASE, Measured(score=float("inf"), lower=1.0), "crash", False),
    (BASE, Measured(score=float("-inf"), lower=1.0), "crash", False),
    (BASE, Measured(score=None, lower=1.0), "crash", False),
    (None, Measured(score=float("nan")), "crash", False),
    (None, Measured(score=0.0), "baseline", True),
    (None, Measured(score=1.5), "baseline", True),
    (BASE, Measured(score=0.0, lower=0.9), "keep", True),
    (Measured(score=0.0), Measured(score=-1.0, lower=0.9), "keep", True),
    (Measured(score=0.0), Measured(score=0.5, lower=-0.6), "discard", False),
    (BASE, Measured(score=1 - 2.01 * THRESHOLD, lower=0.001), "keep", True),
    (BASE, Measured(score=1 - 1.99 * THRESHOLD, lower=0.001), "confirm", False),
    (BASE, Measured(score=1 - 1.01 * THRESHOLD, lower=0.001), "confirm", False),
    (BASE, Measured(score=1 - 1.01 * THRESHOLD, lower=0.001, confirmed=True), "keep", True),
    (BASE, Measured(score=1 - 0.99 * THRESHOLD, lower=0.001, confirmed=True), "discard", False),
    (BASE, Measured(score=1 - 3 * THRESHOLD, lower=0.0), "discard", False),
    (BASE, Measured(score=1 - 3 * THRESHOLD, lower=-0.001), "discard", False),
    (BASE, Measured(score=1 - 3 * THRESHOLD, lower=float("nan")), "discard", False),
    (BASE, Measured(score=1.0, lower=0.0, lines=100), "discard", False),
    (BASE, Measured(score=1.0009, lower=-0.1, lines=97), "keep", False),
    (BASE, Measured(score=1.0009, lower=-0.1, lines=98), "discard", False),
    (BASE, Measured(score=1.0011, lower=-0.1, lines=50), "discard", False),
]


def wrong_rows(decide: Decide) -> list[Any]:
    """The rows of the table that `decide` does not follow, and its verdicts."""
    verdicts = [(row, decide(RULE, row[0], row[1])) for row in TABLE]
    return [(row, told) for row, told in verdicts if (told.decision, told.progress) != row[2:] or not told.reason]


def test_decide_follows_the_table() -> None:
    assert wrong_rows(decide) == []


def zero_is_falsy(rule: Rule, incumbent: Measured | None, candidate: Measured) -> Verdict:
    return decide(rule, incumbent, candidate) if candidate.score else Verdict("crash", "no score")


def zero_incumbent_is_falsy(rule: Rule, incumbent: Measured | None, candidate: Measured) -> Verdict:
    return decide(rule, incumbent if incumbent and incumbent.score else None, candidate)


def nan_accepted(rule: Rule, incumbent: Measured | None, candidate: Measured) -> Verdict:
    if candidate.score is not None and math.isnan(candidate.score):
        return Verdict("keep" if not candidate.score >= 1.0 else "discard", "compared", progress=True)
    return decide(rule, incumbent, candidate)


def strict_less_than(rule: Rule, incumbent: Measured | None, candidate: Measured) -> Verdict:
    return decide(Rule(sd=1e-9, seeds=5), incumbent, candidate)


@pytest.mark.parametrize("mutant", [zero_is_falsy, zero_incumbent_is_falsy, nan_accepted, strict_less_than])
def test_mutant_of_the_gate_is_caught_by_the_table(mutant: Decide) -> None:
    assert wrong_rows(mutant)


def test_decide_missing_paired_bound_is_refused_unless_the_rule_is_unpaired() -> None:
    with pytest.raises(ValueError, match="paired lower bound"):
        decide(RULE, BASE, Measured(score=0.5))
    assert decide(Rule(sd=0.01, seeds=5, paired=False), BASE, Measured(score=0.5)).decision == "keep"


@pytest.mark.parametrize(("score", "sd"), [(float("nan"), 0.01), (None, 0.01), (1.0, float("nan"))])
def test_decide_incumbent_or_rule_that_is_no_number_is_refused(score: float | None, sd: float) -> None:
    with pytest.raises(ValueError, match="threshold"):
        decide(Rule(sd=sd, seeds=5), Measured(score=score), Measured(score=0.5, lower=1.0))


def test_decide_pure_noise_is_kept_at_most_as_often_as_the_rule_says() -> None:
    """Two scores that differ by their seed alone, the sd from 5 seeds: one-sided 5 %, before the second test."""
    generator = random.Random(1)
    passed = 0
    for _ in range(4000):
        baseline = [generator.gauss(0, 1) for _ in range(5)]
        mean = sum(baseline) / 5
        sd = math.sqrt(sum((value - mean) ** 2 for value in baseline) / 4)
        one, two = (
            Measured(score=generator.gauss(0, 1)),
            Measured(score=generator.gauss(0, 1), lower=1.0, confirmed=True),
        )
        passed += decide(Rule(sd=sd, seeds=5), one, two).decision == "keep"
    assert 0.035 < passed / 4000 < 0.065


# scipy.stats.t.ppf(p, df), scipy 1.15
QUANTILES = [
    (0.95, 1, 6.313751514675043),
    (0.95, 2, 2.919985580353725),
    (0.95, 3, 2.353363434801826),
    (0.95, 4, 2.131846786326649),
    (0.95, 9, 1.833112932653603),
    (0.95, 30, 1.697260886593957),
    (0.975, 1, 12.70620473617471),
    (0.975, 10, 2.2281388519649385),
    (0.99, 7, 2.997951566868529),
    (0.95, 1000, 1.6463788172854639),
]


@pytest.mark.parametrize(("p", "df", "expected"), QUANTILES)
def test_student_quantile_agrees_with_known_values(p: float, df: int, expected: float) -> None:
    assert student_quantile(p, df) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("df", [1, 2, 3, 4, 7, 8, 25])
def test_student_quantile_integrates_the_density_to_p(df: int) -> None:
    """Simpson's rule on the density from 0 to the quantile, an independent way to the same number."""
    end, steps = student_quantile(0.95, df), 4000
    scale = math.gamma((df + 1) / 2) / (math.sqrt(df * math.pi) * math.gamma(df / 2))
    values = [scale * (1 + (end * i / steps) ** 2 / df) ** (-(df + 1) / 2) for i in range(steps + 1)]
    area = (values[0] + values[-1] + 4 * sum(values[1:-1:2]) + 2 * sum(values[2:-1:2])) * end / steps / 3
    assert area == pytest.approx(0.45, abs=1e-9)


@pytest.mark.parametrize(("p", "df"), [(0.4, 3), (1.0, 3), (0.95, 0), (float("nan"), 3)])
def test_student_quantile_outside_its_range_is_refused(p: float, df: int) -> None:
    with pytest.raises(ValueError, match="at least 2 seeds"):
        student_quantile(p, df)
