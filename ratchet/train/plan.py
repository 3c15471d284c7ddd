"""What a training is made from, and who is shown it. Refuses to know how it runs (trainer.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ratchet.data.packing import PackedSplit
from ratchet.train.arena import Spec
from ratchet.train.device import Device, Dtype
from ratchet.train.parameters import TrainParams
from ratchet.train.ranks import ALONE, Alone
from ratchet.train.summary import Row


class Watcher(Protocol):
    """Who is shown the committed steps. Nothing that it does reaches the training."""

    def send(self, identity: Any, rows: Iterable[Row]) -> None:
        """Show those of `rows` (in order of step) that were not shown. `identity`: the plan's, from the checkpoint."""
        ...

    def ended(self, rows: Sequence[Row]) -> None:
        """The training is at its stop step, with these rows."""
        ...

    def close(self, exit_code: int) -> None:
        """This process ends with `exit_code`."""
        ...


@dataclass(frozen=True)
class Plan:
    """All that a training is made from. `source`: the arena's text; `wandb`: the W&B run to go on in, if any."""

    params: TrainParams
    split: PackedSplit
    source: str
    device: Device
    dtype: Dtype
    mirror: Watcher
    wandb: Mapping[str, Any] | None
    log_interval: int
    ranks: Alone = ALONE

    def spec(self) -> Spec:
        """What the arena is told."""
        return Spec(
            vocab_size=self.split.vocab_size,
            sequence_len=self.split.sequence_len,
            device=self.device.torch_name,
            dtype=self.dtype,
            compile=self.params.compile,
            seed=self.params.seed,
            reduce=self.ranks.average,
        )
