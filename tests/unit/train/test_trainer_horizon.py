"""Horizon arithmetic: units to steps, stop steps, the schedule's position."""

from __future__ import annotations

import pytest

from ratchet.core.errors import InputError
from ratchet.train.horizon import Horizon, calibrated, progress, steps_of, stop_step

SIZES = {"tokens_per_step": 64, "rows_per_step": 4, "rows_per_epoch": 10}


@pytest.mark.parametrize(
    ("unit", "value", "steps"),
    [("steps", 10, 10), ("tokens", 64, 1), ("tokens", 65, 2), ("epochs", 1, 3), ("epochs", 2, 5), ("seconds", 5, None)],
)
def test_steps_of_a_horizon_rounds_up(unit: str, value: float, steps: int | None) -> None:
    assert steps_of(Horizon(unit=unit, value=value), **SIZES) == steps  # pyright: ignore[reportArgumentType]


def test_steps_of_a_part_of_a_step_is_refused() -> None:
    with pytest.raises(InputError, match=r"train\.horizon\.value = 2\.5 steps; give a whole number"):
        steps_of(Horizon(unit="steps", value=2.5), **SIZES)


def test_calibrated_takes_the_median_so_one_slow_step_counts_little() -> None:
    assert calibrated(10.0, [0.1, 0.1, 0.1, 5.0, 0.1]) == 100
    assert calibrated(0.01, [1.0]) == 1


def test_stop_step_beyond_the_horizon_is_refused_unless_the_schedule_is_constant() -> None:
    assert stop_step(None, 10, constant_schedule=False) == 10
    assert stop_step(10, 10, constant_schedule=False) == 10
    with pytest.raises(InputError, match=r"train\.stop_at = 11 is beyond the horizon of 10 steps"):
        stop_step(11, 10, constant_schedule=False)
    assert stop_step(11, 10, constant_schedule=True) == 11


def test_progress_stays_below_one() -> None:
    assert [progress(step, 4) for step in range(4)] == [0.0, 0.25, 0.5, 0.75]
    assert progress(9, 4) < 1.0
