"""Verdicts: the caps of the objective, a fresh seed where unsure, one winner a round; and how often noise is kept."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from ratchet.core.gate import Rule
from ratchet.loops.research.compare import sd
from ratchet.loops.research.executor import Result
from ratchet.loops.research.records import Status
from ratchet.loops.research.verdict import Contender, Court, Decided, Incumbent, Look, one_winner

SIZES = np.random.default_rng(5).integers(50, 400, 60)
RULE = Rule(sd=0.01, seeds=5)


def look(score: float | None, *, seed: int = 0, **more: float) -> Look:
    """A judged training whose documents scatter around `score`."""
    if score is None:
        return Look(Result(val_bpb=None, reason="it crashed", isolation="weak"), None)
    nats = SIZES * math.log(2) * np.random.default_rng(seed).normal(score, 0.02, len(SIZES))
    nats *= SIZES.sum() * math.log(2) * score / nats.sum()
    table = pd.DataFrame({"document": np.arange(len(SIZES)), "tokens": SIZES, "bytes": SIZES, "nats": nats})
    return Look(Result(val_bpb=score, reason="", isolation="weak", **more), table)  # pyright: ignore[reportArgumentType]


def court(rule: Rule = RULE, score: float = 2.0, *, seed: int = 99, **maximum: float) -> Court:
    return Court(rule, maximum, 1, Incumbent(score, 100, look(score, seed=seed).table))


def never(_: Sequence[Contender]) -> tuple[Look, list[Look]]:
    raise AssertionError("nobody is unsure")


def test_verdicts_far_above_the_threshold_keep_and_below_discard() -> None:
    found = court().verdicts([Contender(1, 100, look(2.01)), Contender(2, 100, look(1.8)), Contender(3, 9, look(None))],
                             never)  # fmt: skip
    assert [found[number].status for number in (1, 2, 3)] == [Status.DISCARD, Status.KEEP, Status.CRASH]
    assert found[2].progress
    assert found[3].reason == "it crashed"


def test_verdicts_over_the_objectives_cap_discard_whatever_the_gain() -> None:
    found = court(params_m=10).verdicts([Contender(1, 100, look(1.5, params_m=10.5))], never)
    assert found[1].status is Status.DISCARD
    assert found[1].reason == "params_m is above the objective's 10"


def test_verdicts_between_one_and_two_thresholds_hang_on_a_fresh_seed() -> None:
    gain = 1.5 * RULE.threshold
    unsure = [Contender(1, 100, look(2 - gain)), Contender(2, 100, look(2 - gain, seed=1))]
    fresh = (look(2.0), [look(2 - gain), look(2.0)])
    found = court().verdicts(unsure, lambda _: fresh)
    assert (found[1].status, found[2].status) == (Status.KEEP, Status.DISCARD)
    assert found[1].reason.startswith("over two seeds the gain")
    assert math.isclose(found[1].gain or 0.0, gain)


def test_verdicts_crash_on_the_fresh_seed_discards() -> None:
    unsure = [Contender(1, 100, look(2 - 1.5 * RULE.threshold))]
    found = court().verdicts(unsure, lambda _: (look(2.0), [look(None)]))
    assert found[1].status is Status.DISCARD
    assert "on a fresh seed it crashed" in found[1].reason


def test_verdicts_a_tie_with_fewer_lines_is_kept_and_is_no_progress() -> None:
    found = court().verdicts([Contender(1, 97, look(2.0005))], never)
    assert found[1].status is Status.KEEP
    assert not found[1].progress
    assert "simpler" in found[1].reason


def test_one_winner_is_the_largest_progress_whatever_the_order() -> None:
    small, large = Decided(Status.KEEP, "a", 0.1, True), Decided(Status.KEEP, "b", 0.2, True)
    simple = Decided(Status.KEEP, "c", 0.3, False)
    found = one_winner({1: small, 2: large, 3: simple})
    assert [found[number].status for number in (1, 2, 3)] == [Status.DISCARD, Status.KEEP, Status.DISCARD]
    assert found[1].reason == "a; but experiment 2 of the same round is kept"
    assert one_winner({1: small, 2: Decided(Status.KEEP, "d", 0.1, True)})[1].status is Status.KEEP


def test_gate_keeps_at_most_five_percent_of_changes_that_change_nothing() -> None:
    """200 trials, each with a baseline of its own: five seeds give the noise, the candidate is a sixth draw."""
    kept = naive = 0
    for trial in range(200):
        rng = np.random.default_rng(trial)
        scores = [float(score) for score in rng.normal(2.0, 0.01, 5)]
        rule = Rule(sd=sd(scores), seeds=5)
        candidate, fresh_mine, fresh_theirs = (float(score) for score in rng.normal(2.0, 0.01, 3))
        here = court(rule, scores[0], seed=trial)
        fresh = (look(fresh_mine, seed=trial + 1000), [look(fresh_theirs, seed=trial + 2000)])
        found = here.verdicts([Contender(1, 100, look(candidate, seed=trial + 3000))], lambda _, f=fresh: f)
        kept += found[1].status is Status.KEEP
        naive += candidate < scores[0]
    assert naive > 70  # "lower wins" keeps about half
    assert kept <= 10
