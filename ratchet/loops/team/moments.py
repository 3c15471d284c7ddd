"""AdamW's moments in three bytes a weight instead of eight: what a checkpoint at an epoch's end holds.

The moments themselves are rounded to what is stored, at every epoch's end, whether a checkpoint is taken there or not:
so a run that goes on from the file goes on from the very numbers it had. Refuses to know optimizers and files.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

STEPS_PER_OCTAVE = 4
LOWEST_OCTAVE = -56
"""2^-56: its root is below AdamW's epsilon of 1e-8, so what is smaller may as well be 0."""
MANTISSA_BITS, EXPONENT_BIAS = 52, 1023
"""Of a float64."""
PART = 1 << 16
"""Weights that are coded at once: what arises on the way stays in the processor's cache and takes no memory (37 ns a
weight became 2)."""


def compact(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Round two moments in place to what three bytes hold, and return these.

    The mean of gradients in bfloat16 is off by 0.4 % at most. The mean of squares in one byte counts quarter octaves,
    so a step's size is off by 4.5 % at most, as often up as down. A second time changes nothing.
    """
    means, codes = torch.empty_like(first, dtype=torch.bfloat16), torch.empty_like(second, dtype=torch.uint8)
    for part, mean in zip(_parts(first), _parts(means), strict=True):
        part.copy_(mean.copy_(part))
    table = _table(second.device)
    for part, coded in zip(_parts(second), _parts(codes), strict=True):
        steps = _steps(part)
        coded.copy_(steps)
        part.copy_(_of(table, steps))
    return means, codes


def decoded(codes: Tensor) -> Tensor:
    """The float32 values that `codes` stand for; code 0 is 0."""
    table, values = _table(codes.device), torch.empty_like(codes, dtype=torch.float32)
    for coded, part in zip(_parts(codes), _parts(values), strict=True):
        part.copy_(_of(table, coded.int()))
    return values


def _steps(part: Tensor) -> Tensor:
    """Quarter octaves above the lowest one, counted from 1 and rounded: the exponent of x⁴·√2 is 4·log2 x, rounded."""
    fourth = part.to(torch.float64, copy=True).square_().square_().mul_(2**0.5)
    lowest = EXPONENT_BIAS + STEPS_PER_OCTAVE * LOWEST_OCTAVE - 1
    return (fourth.view(torch.int64) >> MANTISSA_BITS).sub_(lowest).clamp_(0, 255)


def _table(device: torch.device) -> Tensor:
    octaves = (torch.arange(256, dtype=torch.float64, device=device) - 1) / STEPS_PER_OCTAVE + LOWEST_OCTAVE
    values = octaves.exp2().float()
    values[0] = 0.0
    return values


def _of(table: Tensor, places: Tensor) -> Tensor:
    return table.index_select(0, places.flatten()).view(places.shape)  # a quarter of the time of table[places]


def _parts(tensor: Tensor) -> Sequence[Tensor]:
    """Views of `tensor` that together are all of it, in an order that the layout alone decides."""
    return tensor.view(-1).split(PART) if tensor.is_contiguous() else (tensor,)
