"""The edit budget over the horizon, and where a step stands in it."""

from __future__ import annotations

import pytest

from ratchet.loops.skill.horizon import Horizon
from ratchet.loops.skill.schedule import Scheduler, edit_budget


@pytest.mark.parametrize(
    ("scheduler", "budgets"),
    [
        (Scheduler.CONSTANT, [8, 8, 8, 8, 8]),
        (Scheduler.LINEAR, [8, 7, 5, 4, 2]),
        (Scheduler.COSINE, [8, 7, 5, 3, 2]),
    ],
)
def test_budget_falls_from_highest_to_lowest(scheduler: Scheduler, budgets: list[int]) -> None:
    assert [edit_budget(scheduler, step, 5, highest=8, lowest=2) for step in range(1, 6)] == budgets


@pytest.mark.parametrize("scheduler", list(Scheduler))
def test_budget_beyond_the_horizon_is_the_lowest(scheduler: Scheduler) -> None:
    assert edit_budget(scheduler, 6, 5, highest=8, lowest=2) == 2


def test_budget_of_one_step_is_the_highest() -> None:
    assert edit_budget(Scheduler.COSINE, 1, 1, highest=4, lowest=2) == 4


@pytest.mark.parametrize("wrong", [{"step": 0, "highest": 4}, {"step": 1, "highest": 1}])
def test_budget_of_no_step_or_upside_down_is_an_error(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="budget"):
        edit_budget(Scheduler.LINEAR, wrong["step"], 5, highest=wrong["highest"], lowest=2)


def test_horizon_counts_steps_epochs_and_the_extension() -> None:
    horizon = Horizon(train_size=25, batch=10, epochs=2, extended=1)
    assert (horizon.steps_per_epoch, horizon.steps, horizon.last) == (3, 6, 9)
    places = [horizon.place(step) for step in range(1, 10)]
    assert [place.epoch for place in places] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert [place.step_in_epoch for place in places] == [1, 2, 3] * 3
    assert [place.last_of_epoch for place in places] == [False, False, True] * 3
    assert [place.extension for place in places] == [False] * 6 + [True] * 3


def test_horizon_without_training_tasks_has_no_step() -> None:
    assert Horizon(0, 10, 1).last == 0
