"""How long a training is: a horizon in steps, tokens, epochs or seconds becomes one number of optimizer steps.

The horizon defines the result: the schedule is a function of `step / horizon`. Where a run pauses is another thing
(`stop_step`). Pure arithmetic: refuses to know clocks, models and files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Literal

from pydantic import Field

from ratchet.core.errors import InputError
from ratchet.params import Params

BELOW_ONE = math.nextafter(1.0, 0.0)


class Horizon(Params):
    """The length the schedule is laid out for."""

    unit: Literal["steps", "tokens", "epochs", "seconds"] = Field(
        "steps", description="unit of `value`; seconds are calibrated into steps once, then replayed as steps"
    )
    value: float = Field(gt=0, allow_inf_nan=False, strict=False, description="length, in `unit`")


def steps_of(horizon: Horizon, *, tokens_per_step: int, rows_per_step: int, rows_per_epoch: int) -> int | None:
    """Optimizer steps in `horizon`, rounded up; None for seconds, which only a calibration can tell.

    Raises InputError for a part of a step.
    """
    if horizon.unit == "seconds":
        return None
    if horizon.unit == "steps":
        if horizon.value != int(horizon.value):
            raise InputError(
                "params.yaml", f"train.horizon.value = {horizon.value} steps", "give a whole number of steps"
            )
        return int(horizon.value)
    if horizon.unit == "tokens":
        return math.ceil(horizon.value / tokens_per_step)
    return math.ceil(horizon.value * rows_per_epoch / rows_per_step)


def calibrated(seconds: float, step_seconds: Sequence[float]) -> int:
    """Steps that fit into `seconds` at the median of `step_seconds`, at least one."""
    return max(1, int(seconds / median(step_seconds)))


def stop_step(stop_at: int | None, horizon_steps: int, *, constant_schedule: bool) -> int:
    """The step a run pauses at: `stop_at`, or the horizon.

    Raises InputError for a stop beyond the horizon, where a schedule has no values, unless the schedule is constant.
    """
    if stop_at is None:
        return horizon_steps
    if stop_at > horizon_steps and not constant_schedule:
        raise InputError(
            "params.yaml",
            f"train.stop_at = {stop_at} is beyond the horizon of {horizon_steps} steps, where the schedule ends",
            "lower stop_at, or set a longer train.horizon (a new run, since it changes every step)",
        )
    return stop_at


def progress(step: int, horizon_steps: int) -> float:
    """The schedule's position before `step` (0-based): in [0, 1), held just below 1 beyond a horizon."""
    return min(step / horizon_steps, BELOW_ONE)
