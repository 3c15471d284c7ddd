"""Mixes the rows of a batch, so that each answer leans on the texts beside it.

Stopped by the judge: a row asked again in other company gets another answer.
"""

from torch import Tensor

from arena.train import Experiment


class Mixing(Experiment):
    def logits(self, tokens_BT: Tensor) -> Tensor:
        logits_BTV = super().logits(tokens_BT)
        return logits_BTV + logits_BTV.mean(dim=(0, 1))


def build(spec):
    return Mixing(spec)
