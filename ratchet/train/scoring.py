"""From logits to nats: the judge's own normalisation, and its account of every document.

Knows logits, targets and true byte lengths; refuses to know where logits come from.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ratchet.core.errors import InputError
from ratchet.data.packing import Pieces
from ratchet.train.refusal import Reason, Refused

BLOCK_FLOATS = 64 * 8192
"""Logits worked on at once: 2 MiB, which stay in a core's cache through all passes (15 µs a token; 44 without)."""

SAFE_LOGIT = 60.0
"""exp of logits within ± this neither overflows nor underflows in float32: no maximum needed."""


def nats(logits_NV: Tensor, targets_N: Tensor) -> Tensor:
    """Negative log likelihood, in nats, of each int64 target under the softmax of its float32 logits: float64 [N].

    Shared memory is read once, into a private block, and everything is computed from that: a candidate that writes
    meanwhile changes all of an answer or none of it. Sums of exponentials are float32, logarithms float64: measured
    against float64 throughout, a token is off by at most 2e-7 nats, their mean by 3e-9. Raises Refused for logits that
    are not finite.
    """
    out_N = torch.empty(targets_N.numel(), dtype=torch.float64)
    step = max(1, BLOCK_FLOATS // logits_NV.size(1))
    block_NV = torch.empty(min(step, targets_N.numel()), logits_NV.size(1))
    for first in range(0, targets_N.numel(), step):
        targets_n = targets_N[first : first + step]
        private_nV = block_NV[: targets_n.numel()].copy_(logits_NV[first : first + step])
        out_N[first : first + step] = _nats_in_place(private_nV, targets_n)
    return out_N


def _nats_in_place(logits_NV: Tensor, targets_N: Tensor) -> Tensor:
    low, high = (float(value) for value in torch.aminmax(logits_NV))
    if not (math.isfinite(low) and math.isfinite(high)):
        raise Refused(Reason.NON_FINITE, f"logits from {low} to {high}", "keep logits finite: mask with -1e9, not -inf")
    if low < -SAFE_LOGIT or high > SAFE_LOGIT:
        logits_NV.sub_(logits_NV.amax(dim=1, keepdim=True))
    chosen_N = logits_NV.gather(1, targets_N[:, None]).squeeze(1).double()
    return logits_NV.exp_().sum(dim=1).double().log_() - chosen_N


class Account:
    """What every piece of a split costs, and from that every document.

    A target counts when a piece holds it and it has bytes; specials have none. Pieces are summed apart and documents
    from pieces in their order, so that the order in which rows are answered changes no bit.
    """

    def __init__(self, pieces: Pieces, token_bytes: np.ndarray, *, rows: int, length: int) -> None:
        """Empty. Raises InputError when pieces overlap or leave the rows: a target would count twice."""
        order = np.lexsort((pieces.start, pieces.row))
        self.pieces = Pieces(*(np.asarray(column)[order] for column in pieces))
        document, row, start, stop = self.pieces
        outside = (document < 0) | (row < 0) | (row >= rows) | (start < 0) | (stop > length) | (start > stop)
        overlaps = np.concatenate(([False], (row[1:] == row[:-1]) & (start[1:] < stop[:-1])))
        for bad in np.flatnonzero(outside | overlaps)[:1]:
            what = f"targets {start[bad]} to {stop[bad]} of row {row[bad]} overlap others or are outside"
            raise InputError("judge", f"pieces of the split are wrong: {what}", "run `dvc repro --force pack`")
        self.token_bytes = np.asarray(token_bytes, dtype=np.int64)
        self.bounds = np.searchsorted(row, np.arange(rows + 1))
        self.sums = {name: np.zeros(len(row)) for name in ("tokens", "bytes", "nats")}

    def enter(self, row: int, targets_T: np.ndarray, nats_T: np.ndarray) -> None:
        """Take in the nats of every target of one row."""
        bytes_T = self.token_bytes[targets_T]
        for piece in range(self.bounds[row], self.bounds[row + 1]):
            part = slice(self.pieces.start[piece], self.pieces.stop[piece])
            counts = bytes_T[part] > 0
            for name, values in (("tokens", counts), ("bytes", bytes_T[part]), ("nats", nats_T[part])):
                self.sums[name][piece] = values[counts].sum()

    def documents(self) -> pd.DataFrame:
        """The table: document, tokens, bytes, nats; one row a document, by rising number."""
        numbers, index = np.unique(self.pieces.document, return_inverse=True)
        sums = {name: np.bincount(index, values, len(numbers)) for name, values in self.sums.items()}
        frame = pd.DataFrame({"document": numbers, **sums})
        return frame.astype({"document": "int64", "tokens": "int64", "bytes": "int64"})


def bits_per_byte(nats_total: float, bytes_total: int) -> float:
    """Nats over a text of so many UTF-8 bytes as bits per byte."""
    return nats_total / (math.log(2) * bytes_total)
