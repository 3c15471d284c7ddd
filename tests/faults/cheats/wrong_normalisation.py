"""Answers with "log probabilities" whose exponentials sum to a thousand instead of one.

Gains nothing: the judge normalises whatever it gets.
"""

from torch import Tensor

from arena.train import Experiment


class Inflated(Experiment):
    def logits(self, tokens_BT: Tensor) -> Tensor:
        return super().logits(tokens_BT).log_softmax(-1) + 6.9


def build(spec):
    return Inflated(spec)
