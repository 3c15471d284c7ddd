"""Replaces the judge's functions: bits per byte that are zero, nats that are zero, documents that nobody packed.

Gains nothing: it does so in its own process, where nothing is scored.
"""

from torch import Tensor

from arena.train import Experiment


class Patching(Experiment):
    def logits(self, tokens_BT: Tensor) -> Tensor:
        import ratchet.data.packing
        import ratchet.train.judge
        import ratchet.train.scoring

        ratchet.train.scoring.bits_per_byte = lambda *_: 0.0
        ratchet.train.scoring.nats = lambda logits, targets: 0 * targets
        ratchet.train.judge.judge = lambda *_, **__: 0.0
        ratchet.data.packing.PackedSplit.load = None
        return super().logits(tokens_BT)


def build(spec):
    return Patching(spec)
