"""Joint actions, returns and advantages against values worked out by hand and against the published formulas."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.loops.team.parameters import AdvantageMode, JointMode
from ratchet.loops.team.returns import advantages, deviation, discounted, joint_actions, per_completion

NUMBERS = st.lists(st.floats(-100, 100), min_size=2, max_size=8)


def published(returns: list[float], mode: str) -> list[float]:
    """The published library's advantages, as its source has them, without normalisation."""
    size, total = len(returns), sum(returns)
    return {
        "mean": [value - total / size for value in returns],
        "raw": returns,
        "max": [value - max(returns) for value in returns],
        "rloo": [(value * size - total) / (size - 1) for value in returns],
    }[mode]


def test_joint_actions_aligned_pair_equal_places() -> None:
    assert joint_actions(3, 2, JointMode.ALIGNED) == [(0, 0, 0), (1, 1, 1)]


def test_joint_actions_cross_are_all_pairs_last_agent_fastest() -> None:
    assert joint_actions(2, 2, JointMode.CROSS) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len(joint_actions(3, 4, JointMode.CROSS)) == 64


def test_discounted_adds_the_mean_of_the_next_node_times_the_discount() -> None:
    assert discounted([1.0, 2.0], [[4.0, 6.0], None], 0.5) == [1.0 + 0.5 * 5.0, 2.0]
    assert discounted([1.0], [[4.0]], 1.0) == [5.0], "discount 1: the published return"
    assert discounted([1.0], [[4.0]], 0.0) == [1.0]


def test_discounted_of_other_lengths_is_refused() -> None:
    with pytest.raises(ValueError):
        discounted([1.0, 2.0], [None], 1.0)


def test_per_completion_aligned_gives_each_agent_the_return() -> None:
    combos = joint_actions(2, 2, JointMode.ALIGNED)
    assert per_completion([3.0, 5.0], combos, 2) == [[3.0, 5.0], [3.0, 5.0]]


def test_per_completion_cross_sums_over_the_joint_actions_of_a_completion() -> None:
    combos = joint_actions(2, 2, JointMode.CROSS)
    assert per_completion([1.0, 2.0, 3.0, 4.0], combos, 2) == [[3.0, 7.0], [4.0, 6.0]]


def test_advantages_by_hand() -> None:
    returns = [1.0, 2.0, 6.0]
    expected = {"mean": [-2, -1, 3], "raw": [1, 2, 6], "max": [-5, -4, 0], "rloo": [-3, -1.5, 4.5]}
    for mode, values in expected.items():
        assert advantages(returns, AdvantageMode(mode), normalise=False) == pytest.approx(values)


@given(NUMBERS, st.sampled_from(list(AdvantageMode)))
def test_advantages_are_the_published_ones(returns: list[float], mode: AdvantageMode) -> None:
    found = advantages(returns, mode, normalise=False)
    assert found == pytest.approx(published(returns, mode), abs=1e-9)


@given(NUMBERS, st.sampled_from(list(AdvantageMode)))
def test_advantages_normalised_are_the_published_ones_and_the_same_in_every_mode(
    returns: list[float], mode: AdvantageMode
) -> None:
    found = advantages(returns, mode, normalise=True)
    if max(returns) == min(returns):
        assert found == [0.0] * len(returns)
        return
    plain = published(returns, mode)
    spread = max(statistics.pstdev(plain), 1e-6)
    assert found == pytest.approx([(value - statistics.fmean(plain)) / spread for value in plain], abs=1e-6)
    if deviation(returns) > 1e-4:
        assert found == pytest.approx(advantages(returns, AdvantageMode.MEAN, normalise=True), abs=1e-6)


def test_advantages_of_equal_returns_say_nothing_but_raw_ones() -> None:
    for mode in AdvantageMode:
        assert advantages([0.1] * 3, mode, normalise=True) == [0.0] * 3
        expected = [0.1] * 3 if mode is AdvantageMode.RAW else [0.0] * 3
        assert advantages([0.1] * 3, mode, normalise=False) == expected
