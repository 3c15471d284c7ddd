"""The numbers behind a drawing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.report import series

FLOATS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300)


@given(FLOATS, st.floats(0, 0.5))
def test_smooth_any_series_stays_within_its_range_and_keeps_its_first_value(values: list[float], share: float) -> None:
    given_values = np.array(values)
    smoothed = series.smooth(given_values, share)
    assert len(smoothed) == len(values)
    slack = 1e-9 * max(1.0, np.abs(given_values).sum())
    assert smoothed.min() >= given_values.min() - slack
    assert smoothed.max() <= given_values.max() + slack
    assert math.isclose(smoothed[0], values[0], abs_tol=slack)


def test_smooth_straight_line_does_not_lag() -> None:
    line = np.arange(1000.0)
    assert np.allclose(series.smooth(line, 0.1)[:950], line[:950])


def test_smooth_share_zero_changes_nothing() -> None:
    values = np.random.default_rng(1).normal(size=50)
    assert np.allclose(series.smooth(values, 0), values)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=2000), st.integers(10, 400))
def test_thin_any_series_keeps_ends_and_extremes(values: list[float], points: int) -> None:
    y = np.array(values)
    x, thinned = series.thin(np.arange(len(y), dtype=float), y, points)
    assert len(x) <= max(points + 2, 2)
    assert (thinned[0], thinned[-1]) == (y[0], y[-1])
    assert (thinned.min(), thinned.max()) == (y.min(), y.max())
    assert (np.diff(x) > 0).all()


@given(st.floats(-1e9, 1e9), st.floats(1e-3, 1e9), st.integers(2, 10))
def test_ticks_any_range_lie_within_and_are_few(low: float, width: float, count: int) -> None:
    high = low + width
    marks = series.ticks(low, high, count)
    slack = 1e-6 * max(abs(low), abs(high), 1)
    assert all(low - slack <= mark <= high + slack for mark in marks)
    assert len(marks) <= 2 * count + 1


def test_ticks_loss_axis_are_round() -> None:
    assert series.ticks(2.7, 9.05, 6) == [3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.0, "0"),
        (0.05, "0.05"),
        (3.14159, "3.14"),
        (800.0, "800"),
        (12345.0, "12,345"),
        (4_915_200, "4.92M"),
        (2e9, "2B"),
    ],
)
def test_short_number_is_what_a_person_would_write(value: float, said: str) -> None:
    assert series.short(value) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.04, "0.0 s"), (9.96, "10.0 s"), (59.4, "59 s"), (754.2, "12 min 34 s"), (7380, "2 h 3 min")],
)
def test_duration_is_what_a_person_would_say(seconds: float, said: str) -> None:
    assert series.duration(seconds) == said


def test_bpb_interval_covers_the_truth_about_95_times_in_100() -> None:
    rng = np.random.default_rng(3)
    inside = 0
    for _ in range(400):
        lengths = rng.lognormal(6, 0.6, 300)
        bpb = 1.7 + 0.2 * rng.standard_normal(300)
        low, high = series.bpb_interval(bpb * lengths * math.log(2), lengths)
        inside += low < 1.7 < high
    assert 0.92 <= inside / 400 <= 0.98


def test_bpb_interval_one_document_is_unknown() -> None:
    assert all(math.isnan(edge) for edge in series.bpb_interval(np.array([3.0]), np.array([2.0])))
