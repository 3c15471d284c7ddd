"""The gate: what passes, what does not, and how often a change that changes nothing does."""

from __future__ import annotations

import math
import random

import pytest

from ratchet.loops.skill.gate import EXACT_UP_TO, Gate, Metric, Rule, decide, sign_flip_p
from ratchet.loops.skill.records import Action, Row


def row(hard: int, soft: float) -> Row:
    return Row("a", "q", ("x",), "y", hard, soft, hard, "")


@pytest.mark.parametrize(("metric", "value"), [(Metric.HARD, 0.0), (Metric.SOFT, 0.8), (Metric.MIXED, 0.25 * 0.8)])
def test_gate_metric_is_hard_soft_or_their_mixture(metric: Metric, value: float) -> None:
    assert Gate(metric=metric, mixed_weight=0.25).values([row(0, 0.8)]) == [pytest.approx(value)]


def test_strict_gate_takes_any_gain_and_rejects_ties() -> None:
    gate = Gate(rule=Rule.STRICT)
    assert decide(gate, [0, 0, 1], [0, 1, 1], 1 / 3, 1).action is Action.ACCEPT_NEW_BEST
    assert decide(gate, [0, 1, 1], [1, 0, 1], 2 / 3, 1).action is Action.REJECT
    assert decide(gate, [0, 0, 1], [0, 1, 1], 0.9, 1).action is Action.ACCEPT


@pytest.mark.parametrize(("better", "worse", "passes"), [(4, 0, False), (5, 0, True), (7, 1, True), (7, 3, False)])
def test_paired_gate_asks_for_more_than_chance(better: int, worse: int, passes: bool) -> None:
    before, after = [0] * better + [1] * worse + [1] * 20, [1] * better + [0] * worse + [1] * 20
    verdict = decide(Gate(), before, after, 0.0, 3)
    n = better + worse
    assert verdict.p == pytest.approx(sum(math.comb(n, k) for k in range(better, n + 1)) / 2**n)
    assert (verdict.action is Action.ACCEPT_NEW_BEST) == passes
    assert verdict.delta == pytest.approx((better - worse) / len(before))


def test_gate_with_equal_scores_rejects_under_both_rules() -> None:
    for rule in Rule:
        assert decide(Gate(rule=rule), [1, 0], [1, 0], 0.5, 1).action is Action.REJECT


@pytest.mark.parametrize("scores", [([], []), ([1.0], [1.0, 0.0]), ([1.0], [math.nan])])
def test_gate_without_scores_or_with_nan_is_an_error_not_a_zero(scores: tuple[list[float], list[float]]) -> None:
    with pytest.raises(ValueError, match="scores"):
        decide(Gate(), *scores, 0.0, 1)


def test_sign_flip_exact_and_drawn_agree_and_depend_on_the_seed_alone() -> None:
    values = [0.1 * (k % 5 + 1) * (-1 if k % 4 == 0 else 1) for k in range(EXACT_UP_TO)]
    exact = sign_flip_p(values, 1)
    assert exact == sign_flip_p(values, 2)
    padded = [*values, 1e-13]
    assert sign_flip_p(padded, 1) == sign_flip_p(padded, 1)
    assert sign_flip_p(padded, 1) == pytest.approx(exact, abs=0.02)


@pytest.mark.parametrize("n", [12, 60])
def test_no_op_edit_passes_the_paired_gate_rarely_and_the_strict_one_often(n: int) -> None:
    """An agent that samples answers differently twice: what changes nothing is above itself half of the time, less
    ties."""
    draw = random.Random(n)
    passed = dict.fromkeys(Rule, 0)
    trials = 600
    for trial in range(trials):
        skill = [draw.random() for _ in range(n)]
        before, after = ([float(draw.random() < chance) for chance in skill] for _ in range(2))
        for rule in Rule:
            passed[rule] += decide(Gate(rule=rule), before, after, 0.0, trial).action is not Action.REJECT
    assert passed[Rule.PAIRED] / trials <= 0.06
    assert 0.35 < passed[Rule.STRICT] / trials < 0.5
