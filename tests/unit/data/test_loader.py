"""The loader: every row once an epoch, a shuffled order that the position alone decides, exact resume."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.core.errors import InputError
from ratchet.data.loader import Loader
from ratchet.data.packing import PackedSplit

PINNED = [2, 6, 1, 5, 0, 4, 8, 3, 7, 4, 7, 6]


def make_split(rows: int, sequence_len: int = 4, dtype: type[np.unsignedinteger] = np.uint16) -> PackedSplit:
    """Rows whose first id is their own number."""
    ids = np.arange(rows)[:, None] + np.arange(sequence_len + 1)[None, :] * 1000
    manifest = {"sequence_len": sequence_len, "vocab_size": 6000}
    return PackedSplit(Path("split"), manifest, ids.astype(dtype), None)


def serve(split: PackedSplit, batches: int, *, batch_rows: int = 3, seed: int = 1, position: int = 0) -> torch.Tensor:
    with Loader(split, batch_rows=batch_rows, seed=seed, position=position) as loader:
        return torch.stack([loader.next() for _ in range(batches)])


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 30), batch_rows=st.integers(1, 40), seed=st.integers(0, 2**63 - 1))
def test_loader_serves_every_row_once_an_epoch_whatever_the_batch(rows: int, batch_rows: int, seed: int) -> None:
    epochs = 3
    batches = -(-rows * epochs // batch_rows)
    served = serve(make_split(rows), batches, batch_rows=batch_rows, seed=seed)[..., 0].flatten().tolist()
    for epoch in range(epochs):
        assert sorted(served[epoch * rows : (epoch + 1) * rows]) == list(range(rows))


def test_loader_batches_are_int64_rows_of_the_split() -> None:
    split = make_split(10, dtype=np.uint32)
    batch = serve(split, 1)[0]
    assert batch.dtype == torch.int64
    assert batch.shape == (3, 5)
    assert batch.is_contiguous()
    assert np.array_equal(batch.numpy(), split.rows[batch[:, 0].numpy()])


def test_loader_order_differs_between_epochs_and_seeds() -> None:
    one = serve(make_split(50), 4, batch_rows=25)[..., 0].reshape(2, 50)
    other = serve(make_split(50), 4, batch_rows=25, seed=2)[..., 0].reshape(2, 50)
    assert one[0].tolist() != one[1].tolist()
    assert one[0].tolist() != other[0].tolist()
    assert one[0].tolist() != sorted(one[0].tolist())


def test_loader_same_rows_come_in_the_same_order_whatever_the_batch_size() -> None:
    split = make_split(7)
    assert torch.equal(serve(split, 12, batch_rows=2).flatten(), serve(split, 3, batch_rows=8).flatten())


@pytest.mark.parametrize("stop", [0, 1, 2, 3, 4, 9, 10])
def test_loader_continued_from_its_position_equals_never_stopped(stop: int) -> None:
    split, batches = make_split(7), 12
    unbroken = serve(split, batches)
    with Loader(split, batch_rows=3, seed=1) as loader:
        first = [loader.next() for _ in range(stop)]
        position = loader.position
    assert position == stop
    rest = serve(split, batches - stop, position=position)
    assert torch.equal(torch.cat([*(batch[None] for batch in first), rest]), unbroken)


def test_loader_position_counts_served_batches_and_not_the_prefetched_one() -> None:
    with Loader(make_split(7), batch_rows=3, seed=1) as loader:
        assert (loader.position, loader.epoch) == (0, 0.0)
        loader._ahead.result()
        assert loader.position == 0
        loader.next()
        assert (loader.position, loader.epoch) == (1, 3 / 7)


def test_loader_set_back_drops_what_was_prefetched() -> None:
    with Loader(make_split(20), batch_rows=3, seed=1) as loader:
        served = [loader.next() for _ in range(5)]
        loader.position = 2
        assert torch.equal(loader.next(), served[2])
        loader.position = 9
        assert loader.position == 9
        assert torch.equal(loader.next(), serve(make_split(20), 1, position=9)[0])


def test_loader_batch_served_is_not_changed_by_later_ones() -> None:
    with Loader(make_split(20), batch_rows=3, seed=1) as loader:
        first = loader.next()
        copy = first.clone()
        loader.next()
        loader.next()
        assert torch.equal(first, copy)


def test_loader_order_is_pinned_so_that_old_runs_can_be_continued() -> None:
    assert serve(make_split(9), 4)[..., 0].flatten().tolist() == PINNED


def test_loader_reads_no_global_random_generator() -> None:
    torch.manual_seed(3)
    one = serve(make_split(30), 5)
    torch.manual_seed(4)
    before = torch.get_rng_state()
    assert torch.equal(one, serve(make_split(30), 5))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("values", "message"), [({"batch_rows": 0}, "batch_rows = 0"), ({"position": -1}, "position = -1")]
)
def test_loader_what_it_cannot_serve_is_refused(values: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Loader(make_split(5), **{"batch_rows": 2, "seed": 1, **values})
