"""The `train` section of params.yaml, and which of its keys a resume may change.

Knows names, units and ranges; refuses to know how training is done.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from ratchet.params import Params
from ratchet.train.device import DtypeChoice
from ratchet.train.horizon import Horizon

KnobValue = int | float | str

PORTABLE = ("stop_at", "checkpoint", "startup_limit_s", "explode_ratio")
"""Keys that decide when a run pauses, saves or gives up, never what it computes: they are left out of its identity."""


class Checkpointing(Params):
    """When the state of a training is committed; it always is at a stop and at the end."""

    every_steps: int | None = Field(
        None, ge=1, description="commit at each multiple of this many steps; null = by time only"
    )
    every_seconds: float = Field(
        60.0,
        gt=0,
        strict=False,
        description="commit after this many seconds; waits longer when saving would cost over 2 %",
    )
    keep_last: int = Field(2, ge=1, description="checkpoints kept; the newest good one is never removed")
    keep_best: int = Field(
        0, ge=0, description="further checkpoints kept: those with the lowest median loss of their last 50 steps"
    )


class TrainParams(Params):
    """The `train` section of params.yaml."""

    seed: int = Field(1, ge=0, description="seed of the initial weights and of the order of the rows")
    horizon: Horizon = Field(description="length that the schedule is laid out for; defines the result")
    stop_at: int | None = Field(None, ge=1, description="step at which this run pauses; null = at the horizon")
    dtype: DtypeChoice = Field("auto", description="of matrix products; auto = bfloat16 if in hardware")
    compile: bool = Field(False, description="torch.compile the step: faster, after 1 to 2 minutes of start-up")
    startup_limit_s: float = Field(
        600.0, gt=0, strict=False, description="seconds that compiling, warm-up and calibration may take together"
    )
    explode_ratio: float = Field(
        4.0,
        gt=1,
        strict=False,
        description="stop when the loss exceeds this multiple of its median over the last 50 steps",
    )
    checkpoint: Checkpointing = Field(default_factory=Checkpointing, description="when state is committed")  # pyright: ignore[reportArgumentType]
    knobs: dict[str, KnobValue] = Field(
        default_factory=dict, description="overrides of the arena's declared constants, such as {DEPTH: 6}"
    )

    def defining(self) -> dict[str, Any]:
        """What of these decides a result's bytes, as JSON."""
        return self.model_dump(mode="json", exclude=set(PORTABLE))

    def portable(self) -> dict[str, Any]:
        """What of these a resume may change, as JSON."""
        return self.model_dump(mode="json", include=set(PORTABLE))
