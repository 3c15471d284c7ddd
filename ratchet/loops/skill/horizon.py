"""Where a step stands: epoch, place in it, and how long training lasts. Arithmetic alone, so a resume cannot shift it.

Refuses to know what a step does.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """One training step, all counted from 1. `extension`: it lies beyond the horizon."""

    step: int
    epoch: int
    step_in_epoch: int
    last_of_epoch: bool
    extension: bool


@dataclass(frozen=True)
class Horizon:
    """`train_size` tasks, `batch` of them a step (batch_size × accumulation), `epochs` passes, then `extended` more."""

    train_size: int
    batch: int
    epochs: int
    extended: int = 0

    @property
    def steps_per_epoch(self) -> int:
        """ceil(train_size / batch); 0 without training tasks."""
        return -(-self.train_size // self.batch)

    @property
    def steps(self) -> int:
        """The horizon that the schedule is laid out for."""
        return self.epochs * self.steps_per_epoch

    @property
    def last(self) -> int:
        """The horizon and its extension."""
        return (self.epochs + self.extended) * self.steps_per_epoch

    def place(self, step: int) -> Place:
        """Where `step` ≥ 1 stands."""
        epoch, before = divmod(step - 1, self.steps_per_epoch)
        return Place(step, epoch + 1, before + 1, before + 1 == self.steps_per_epoch, step > self.steps)
