"""When a loss counts as failed."""

from __future__ import annotations

import math

import pytest

from ratchet.train.divergence import diverged, remembered


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_diverged_loss_that_is_no_number_fails_at_once(loss: float) -> None:
    assert "loss is" in (diverged(loss, {}, [], 4.0) or "")


def test_diverged_gradient_norm_that_is_no_number_fails() -> None:
    assert diverged(2.0, {"grad_norm": math.inf}, [], 4.0) == "grad_norm is inf"


def test_diverged_jump_over_the_median_fails_once_there_are_ten_losses() -> None:
    assert diverged(8.1, {}, [2.0] * 10, 4.0) == "loss 8.1 is over 4 times the median of the last 10 steps, 2"
    assert diverged(8.0, {}, [2.0] * 10, 4.0) is None
    assert diverged(8.1, {}, [2.0] * 9, 4.0) is None


def test_diverged_small_losses_may_jump() -> None:
    assert diverged(0.3, {}, [0.01] * 50, 4.0) is None
    assert diverged(4.1, {}, [0.01] * 50, 4.0)


def test_remembered_keeps_the_last_fifty() -> None:
    assert remembered(list(range(50)), 50.0) == [*range(1, 50), 50.0]
