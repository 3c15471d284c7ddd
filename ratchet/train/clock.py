"""Where the time of a training went, summed over all the processes that worked on it.

Knows seconds; refuses to know steps. Travels in the checkpoint, and never enters anything that a rerun must repeat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from time import perf_counter

SAVING_SHARE = 0.02


@dataclass
class Clock:
    """Sums in seconds; `total_seconds` is wall time inside the trainer. `peak_flops` is the device's, per second."""

    training_seconds: float = 0.0
    startup_seconds: float = 0.0
    checkpoint_seconds: float = 0.0
    total_seconds: float = 0.0
    peak_vram_mb: float = 0.0
    peak_flops: float = 0.0

    def __post_init__(self) -> None:
        self._entered = perf_counter()
        self._committing: float | None = None
        self._last_commit = 0.0

    def take_over(self, earlier: Mapping[str, float]) -> None:
        """Add what processes before this one have spent, as `as_json` wrote it."""
        for name in ("training_seconds", "startup_seconds", "checkpoint_seconds", "total_seconds"):
            setattr(self, name, getattr(self, name) + earlier[name])
        self.peak_vram_mb = max(self.peak_vram_mb, earlier["peak_vram_mb"])

    def commit_begins(self) -> None:
        """A segment's outcome is about to be handed over to be committed."""
        self._committing = perf_counter()

    def commit_ended(self) -> None:
        """The next segment begins, or the loop has ended: what lay between was saving."""
        if self._committing is not None:
            self._last_commit = perf_counter() - self._committing
            self.checkpoint_seconds += self._last_commit
            self._committing = None

    def interval(self, wanted: float) -> float:
        """Seconds until the next commit: `wanted`, or longer where saving would cost over 2 % of the time."""
        return max(wanted, self._last_commit / SAVING_SHARE)

    def as_json(self) -> dict[str, float]:
        """The sums up to now."""
        now = perf_counter()
        return asdict(self) | {"total_seconds": self.total_seconds + now - self._entered}
