"""The judge's normalisation and its account of documents."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.core.errors import InputError
from ratchet.data.packing import Pieces
from ratchet.train.refusal import Reason, Refused
from ratchet.train.scoring import Account, bits_per_byte, nats

DRAW = torch.Generator().manual_seed(0)


def truth(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    exact = logits.double()
    return torch.logsumexp(exact, -1) - exact.gather(1, targets[:, None]).squeeze(1)


def test_nats_of_softcapped_logits_are_within_1e_7_bits_per_byte() -> None:
    logits = 15 * torch.tanh(torch.randn(2048, 8192, generator=DRAW) * 0.3)
    targets = torch.randint(8192, (2048,), generator=DRAW)
    error = nats(logits, targets) - truth(logits, targets)
    assert float(error.abs().max()) < 1e-6
    assert abs(float(error.mean())) / math.log(2) < 1e-8


@pytest.mark.parametrize("shift", [-1e4, -59.0, 59.0, 1e4])
@pytest.mark.parametrize("scale", [0.1, 30.0, 3000.0])
def test_nats_of_extreme_logits_neither_overflow_nor_drift(shift: float, scale: float) -> None:
    logits = torch.randn(100, 50, generator=DRAW) * scale + shift
    targets = torch.randint(50, (100,), generator=DRAW)
    # float32 logits of size 1e4 are themselves coarse; the judge adds no more than one rounding of the difference.
    torch.testing.assert_close(nats(logits, targets), truth(logits, targets), rtol=1e-6, atol=2e-6)


def test_nats_do_not_change_what_they_are_given() -> None:
    logits = torch.randn(10, 8, generator=DRAW)
    before = logits.clone()
    nats(logits, torch.zeros(10, dtype=torch.int64))
    assert torch.equal(logits, before)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nats_of_one_value_that_is_not_finite_are_refused(value: float) -> None:
    logits = torch.zeros(200, 8192)
    logits[137, 5] = value
    with pytest.raises(Refused) as refusal:
        nats(logits, torch.zeros(200, dtype=torch.int64))
    assert refusal.value.reason is Reason.NON_FINITE


@settings(max_examples=50, deadline=None)
@given(cuts=st.lists(st.integers(0, 8), min_size=2, max_size=6, unique=True), seed=st.integers(0, 99))
def test_account_of_any_order_of_rows_is_the_same_bits(cuts: list[int], seed: int) -> None:
    draw = np.random.default_rng(seed)
    edges = sorted(cuts)
    table = [(number % 3, row, start, stop) for row in range(4)
             for number, (start, stop) in enumerate(pairwise(edges))]  # fmt: skip
    pieces = Pieces(*(np.array(column) for column in zip(*table, strict=True)))
    token_bytes = np.array([0, 1, 2, 3])
    targets, costs = draw.integers(0, 4, (4, 8)), draw.random((4, 8))
    tables = []
    for order in (range(4), reversed(range(4))):
        account = Account(pieces, token_bytes, rows=4, length=8)
        for row in order:
            account.enter(row, targets[row], costs[row])
        tables.append(account.documents())
    assert tables[0].equals(tables[1])
    inside = targets[:, edges[0] : edges[-1]]
    assert tables[0]["bytes"].sum() == token_bytes[inside].sum()
    assert tables[0]["tokens"].sum() == (inside > 0).sum()
    assert tables[0]["nats"].sum() == pytest.approx(costs[:, edges[0] : edges[-1]][inside > 0].sum())


@pytest.mark.parametrize("second", [(1, 0, 4, 8), (1, 2, 0, 3), (1, 0, 5, 9), (1, -1, 0, 2), (1, 0, 7, 6)])
def test_account_of_pieces_that_overlap_or_leave_the_rows_is_refused(second: tuple[int, int, int, int]) -> None:
    pieces = Pieces(*(np.array(column) for column in zip((0, 0, 0, 5), second, strict=True)))
    with pytest.raises(InputError, match="pieces of the split are wrong"):
        Account(pieces, np.array([1]), rows=2, length=8)


def test_bits_per_byte_of_one_bit_per_byte_is_one() -> None:
    assert bits_per_byte(math.log(2) * 10, 10) == pytest.approx(1.0)
