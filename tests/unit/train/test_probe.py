"""The secret plan: what must hold for every secret."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.train.probe import Again, Evidence, Look, Plan, Tolerance, make_plan
from ratchet.train.refusal import Reason, Refused

SIZES = st.tuples(st.integers(1, 60), st.integers(2, 9), st.integers(1, 9))


def asked(plan: Plan, side: int, *looks: Look) -> list[int]:
    return [row for ask in plan.asks[side] if ask.look in looks for row in ask.rows[: ask.used]]


@settings(max_examples=150, deadline=None)
@given(sizes=SIZES, seed=st.integers(0, 2**63))
def test_plan_of_any_secret_judges_each_row_once_in_fixed_company(sizes: tuple[int, int, int], seed: int) -> None:
    rows, length, batch = sizes[0], sizes[1], min(sizes[2], sizes[0])
    plan = make_plan(rows, length, batch, seed)
    assert sorted(asked(plan, 0, Look.JUDGED) + asked(plan, 1, Look.JUDGED)) == list(range(rows))
    judged = [ask.rows for side in plan.asks for ask in side if ask.look is Look.JUDGED]
    assert {len(ask.rows) for side in plan.asks for ask in side} == {batch}
    other = [
        ask.rows for side in make_plan(rows, length, batch, seed + 1).asks for ask in side if ask.look is Look.JUDGED
    ]
    assert sorted(judged) == sorted(other)
    for look in (Look.ALTERED, Look.REPEATED):
        assert plan.probed(look) == make_plan(rows, length, batch, seed + 1).probed(look) >= max(1, rows // 100)


@settings(max_examples=150, deadline=None)
@given(sizes=SIZES, seed=st.integers(0, 2**63))
def test_plan_probes_rows_in_the_process_that_has_seen_neither_row_nor_donor(
    sizes: tuple[int, int, int], seed: int
) -> None:
    rows, length, batch = sizes[0], sizes[1], min(sizes[2], sizes[0])
    plan = make_plan(rows, length, batch, seed)
    for side in (0, 1):
        seen = set(asked(plan, side, Look.JUDGED))
        altered, repeated = asked(plan, side, Look.ALTERED), asked(plan, side, Look.REPEATED)
        assert not seen & {*altered, *repeated}
        assert len(set(altered)) == len(altered)
        assert rows <= 4 * batch or not set(altered) & set(repeated)
        for ask in plan.asks[side]:
            assert not seen & set(ask.donors)


def test_plan_of_default_split_probes_little_more_than_stated() -> None:
    plan = make_plan(225, 256, 4, 1)
    probes = sum(ask.look is not Look.JUDGED for side in plan.asks for ask in side)
    judged = sum(ask.look is Look.JUDGED for side in plan.asks for ask in side)
    assert probes / judged <= 0.1
    assert plan.probed(Look.ALTERED) / 225 >= 0.03


def test_plan_of_large_split_costs_under_five_percent() -> None:
    plan = make_plan(10_000, 256, 4, 1)
    assert plan.probed(Look.ALTERED) + plan.probed(Look.REPEATED) <= 0.041 * 10_000


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**63), vocab=st.integers(2, 5))
def test_altered_inputs_keep_the_past_and_change_the_id_at_the_cut(seed: int, vocab: int) -> None:
    rows = np.random.default_rng(seed).integers(0, vocab, (9, 8)).astype(np.uint16)
    for side in make_plan(9, 7, 2, seed).asks:
        for ask in side:
            inputs, targets = ask.inputs(rows, vocab), ask.targets(rows)
            assert inputs.max() < vocab
            for place, row in enumerate(ask.rows):
                assert targets[place].tolist() == rows[row, 1:].tolist()
                cut = ask.cuts[place] if ask.look is Look.ALTERED and place < ask.used else None
                assert inputs[place, :cut].tolist() == rows[row, :-1][:cut].tolist()
                if cut is not None:
                    assert 1 <= cut < 7
                    assert inputs[place, cut] != rows[row, cut]


REASONS = [(Look.REPEATED, Reason.CHANGING_ANSWERS), (Look.ALTERED, Reason.LOOK_AHEAD)]
LIMIT = Tolerance(one=1e-4, mean=1e-5)


@pytest.mark.parametrize(("look", "reason"), REASONS)
def test_evidence_of_one_large_move_refuses_and_names_the_place(look: Look, reason: Reason) -> None:
    first = {4: np.array([1.0, 2.0, 3.0, 4.0])}
    small = Evidence(first, [Again(look, 4, np.array([1.0 - 9e-5, 2.0 + 9e-5]))])
    assert small.verdict(LIMIT) == pytest.approx(9e-5)
    large = Evidence(first, [Again(look, 4, np.array([1.0])), Again(look, 4, np.array([1.0, 1.5, 3.0]))])
    with pytest.raises(Refused, match=r"row 4, target 1") as refusal:
        large.verdict(LIMIT)
    assert refusal.value.reason is reason


@pytest.mark.parametrize(("look", "reason"), REASONS)
def test_evidence_of_many_small_moves_upwards_refuses(look: Look, reason: Reason) -> None:
    first = {0: np.ones(100)}
    balanced = np.tile([5e-5, -5e-5], 50)
    assert Evidence(first, [Again(look, 0, first[0] + balanced)]).verdict(LIMIT) == pytest.approx(5e-5)
    with pytest.raises(Refused, match="nats a target") as refusal:
        Evidence(first, [Again(look, 0, first[0] + 5e-5)]).verdict(LIMIT)
    assert refusal.value.reason is reason
