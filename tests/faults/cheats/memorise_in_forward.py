"""Learns the text it is judged on while it is judged: each call to `logits` counts what follows what.

Stopped by the judge: rows are asked again, of the other process, and answers differ.
"""

import torch
from torch import Tensor

from arena.train import Experiment


class Memorising(Experiment):
    def __init__(self, spec):
        super().__init__(spec)
        self.counts_VV = torch.zeros(spec.vocab_size, spec.vocab_size)

    def logits(self, tokens_BT: Tensor) -> Tensor:
        logits_BTV = super().logits(tokens_BT) + self.counts_VV[tokens_BT]
        self.counts_VV[tokens_BT[:, :-1].reshape(-1), tokens_BT[:, 1:].reshape(-1)] += 1.0
        return logits_BTV


def build(spec):
    return Memorising(spec)
