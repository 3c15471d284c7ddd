"""Adds the next token of the text to the logits of each position.

Stopped by the judge: after a random cut the text is replaced, and answers before the cut move.
"""

import torch
from torch import Tensor

from arena.train import Experiment


class Peeking(Experiment):
    def logits(self, tokens_BT: Tensor) -> Tensor:
        logits_BTV = super().logits(tokens_BT)
        ahead = tokens_BT[:, 1:, None]
        return logits_BTV.scatter_add_(2, ahead, torch.full(ahead.shape, 5.0))


def build(spec):
    return Peeking(spec)
