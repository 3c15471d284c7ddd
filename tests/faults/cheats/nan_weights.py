"""Leaves weights that are not numbers, in the hope that a comparison with them goes its way.

Stopped by the judge: logits must be finite.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from arena.train import Experiment


class Undefined(Experiment):
    def step(self, batches: Sequence[Tensor], progress: float) -> Tensor:
        loss = super().step(batches, progress)
        if progress >= 0.5:  # after the last of two steps, where no loss is computed any more
            with torch.no_grad():
                self.model.head.fill_(torch.nan)
        return loss


def build(spec):
    return Undefined(spec)
