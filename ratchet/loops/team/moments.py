"""AdamW's moments in three bytes a weight instead of eight: what a checkpoint at an epoch's end holds.

The moments themselves are rounded to what is stored, at every epoch's end, whether a checkpoint is taken there or not:
so a run that goes on from the file goes on from the very numbers it had. Refuses to know optimizers and files.
"""

from __future__ import annotations

import torch
from torch import Tensor

STEPS_PER_OCTAVE = 4
LOWEST_OCTAVE = -56
"""2^-56: its root is below AdamW's epsilon of 1e-8, so what is smaller may as well be 0."""


def first_rounded(moment: Tensor) -> Tensor:
    """The mean of gradients in bfloat16: off by 0.4 % at most."""
    return moment.to(torch.bfloat16)


def second_coded(moment: Tensor) -> Tensor:
    """The mean of squares in one byte: quarter octaves, so a step's size is off by 4.5 % at most, as often up as down.
    Coding what `second_decoded` gives changes nothing."""
    place = (moment.double().log2() - LOWEST_OCTAVE) * STEPS_PER_OCTAVE
    return (place + 1).round().clamp(0, 255).to(torch.uint8)


def second_decoded(codes: Tensor) -> Tensor:
    """The float32 values that `codes` stand for; code 0 is 0."""
    octaves = (torch.arange(256, dtype=torch.float64, device=codes.device) - 1) / STEPS_PER_OCTAVE + LOWEST_OCTAVE
    values = octaves.exp2()
    values[0] = 0.0
    return values.float()[codes.long()]
