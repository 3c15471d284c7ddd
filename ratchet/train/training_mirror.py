"""The W&B mirror of a training, and what a person should see in its steps. It decides no byte of the training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.train.mirror import Mirror, Mode, Sent
from ratchet.train.summary import HISTORY_COLUMNS, TIMING_COLUMNS, Row

if TYPE_CHECKING:
    from ratchet.tables.findings import Found


SENT = Sent("train", ("tokens", "epoch", "loss", "lr_scale", "grad_norm", "tokens_per_s", "memory_mb"), "training")


class TrainingMirror(Mirror):
    """A Watcher of the trainer's."""

    def __init__(self, mode: Mode, folder: Path, config: Mapping[str, Any]) -> None:
        super().__init__(mode, folder, config, SENT)

    def ended(self, rows: Sequence[Row]) -> None:
        """See Watcher."""
        self.tell(lambda: findings(rows))


def findings(rows: Sequence[Row]) -> list[Found]:
    """What a person should see in these steps."""
    import pandas as pd  # here: a candidate's process trains without it

    from ratchet.tables.training_findings import in_training

    history, steps = (pd.DataFrame([{name: row[name] for name in names} for row in rows], columns=list(names))
                      for names in (HISTORY_COLUMNS, TIMING_COLUMNS))  # fmt: skip
    return in_training(history, steps)
