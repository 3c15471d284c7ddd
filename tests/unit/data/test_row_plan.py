"""The plan of rows: every id a target once, rows full or padded, best fit as a scan would choose it."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.data.row_plan import PADDING, Gaps, Plan, plan_rows

sizes_and_slots = st.tuples(st.lists(st.integers(2, 40), min_size=1, max_size=60), st.integers(2, 16))


def plan(sizes: list[int], row_slots: int, gaps: Gaps) -> Plan:
    return plan_rows(np.array(sizes, dtype=np.uint32), row_slots, gaps)


def scanned_plan(sizes: list[int], row_slots: int, gaps: Gaps) -> list[tuple[int, int, int]]:
    """The same rule by scanning all documents left, each time: (document, start, size) of every piece laid."""
    left = dict(enumerate(sizes))
    laid: list[tuple[int, int, int]] = []
    gap, tail = row_slots, None
    while left or tail:
        if tail is None:
            fitting = {d: s for d, s in left.items() if s <= gap}
            # The longest is taken, of equals the first; of those longer than a row the last.
            document = max(fitting, key=lambda d: (fitting[d], -d), default=None)
            longer = [d for d, s in left.items() if s > row_slots]
            if longer and (gap == row_slots or (document is None and gaps is Gaps.FILL)):
                document = max(longer, key=lambda d: (left[d], d))
            elif document is None and gaps is Gaps.FILL:
                document = max(left, key=lambda d: (left[d], -d))
            if document is None:
                laid.append((PADDING, 0, gap))
                gap = row_slots
                continue
            start, end = 0, left.pop(document)
        else:
            document, start, end = tail
        size = min(end - start, gap)
        laid.append((document, start, size))
        tail = (document, start + size - 1, end) if start + size < end else None
        gap = gap - size or row_slots
    if gaps is Gaps.PAD and gap < row_slots:
        laid.append((PADDING, 0, gap))
    return laid


@given(sizes_and_slots, st.sampled_from(Gaps))
def test_plan_any_sizes_lays_what_a_scan_of_all_documents_lays(case: tuple[list[int], int], gaps: Gaps) -> None:
    sizes, row_slots = case
    found = plan(sizes, row_slots, gaps)
    expected = scanned_plan(sizes, row_slots, gaps)
    pieces = list(zip(found.document.tolist(), found.start.tolist(), found.size.tolist(), strict=True))
    assert pieces == expected[: len(pieces)]
    assert sum(size for *_, size in expected[len(pieces) :]) < row_slots
    assert found.lost == sum(size - 1 for *_, size in expected[len(pieces) :])


@given(sizes_and_slots, st.sampled_from(Gaps))
def test_plan_any_sizes_makes_every_id_after_a_bos_a_target_exactly_once(
    case: tuple[list[int], int], gaps: Gaps
) -> None:
    sizes, row_slots = case
    found = plan(sizes, row_slots, gaps)
    targets: dict[int, list[int]] = {document: [] for document in range(len(sizes))}
    slot = 0
    for document, start, size in zip(*(column.tolist() for column in found[:3]), strict=True):
        assert slot % row_slots + size <= row_slots
        assert start == 0 or slot % row_slots == 0, "a continuation begins a row"
        if document != PADDING:
            targets[document] += range(start + 1, start + size)
        slot += size
    assert slot == found.rows * row_slots
    assert all(seen == list(range(1, len(seen) + 1)) for seen in targets.values())
    assert sum(sizes) - len(sizes) - sum(map(len, targets.values())) == found.lost
    if gaps is Gaps.PAD:
        assert found.lost == 0


@given(sizes_and_slots)
def test_plan_padded_rows_cut_only_documents_longer_than_a_row(case: tuple[list[int], int]) -> None:
    sizes, row_slots = case
    found = plan(sizes, row_slots, Gaps.PAD)
    documents, pieces = np.unique(found.document[found.document != PADDING], return_counts=True)
    assert set(documents.tolist()) == set(range(len(sizes)))
    assert {d for d, n in zip(documents.tolist(), pieces.tolist(), strict=True) if n > 1} == {
        d for d, size in enumerate(sizes) if size > row_slots
    }
    assert found.cut == sum(size > row_slots for size in sizes)


@given(sizes_and_slots)
def test_plan_filled_rows_hold_no_padding_and_lose_less_than_a_row(case: tuple[list[int], int]) -> None:
    sizes, row_slots = case
    found = plan(sizes, row_slots, Gaps.FILL)
    assert PADDING not in found.document
    assert found.lost < row_slots


def test_plan_gap_that_only_larger_documents_are_left_for_cuts_the_longest_and_continues_it() -> None:
    found = plan([6, 7, 5], 8, Gaps.FILL)
    # Row 0: document 1 whole, and the BOS of document 0 where one slot is left; row 1 has all of document 0's targets.
    assert found.document.tolist() == [1, 0, 0, 2]
    assert found.start.tolist() == [0, 0, 0, 0]
    assert found.size.tolist() == [7, 1, 6, 2]
    assert (found.rows, found.lost, found.cut) == (2, 3, 1)


@pytest.mark.parametrize("gaps", Gaps)
def test_plan_the_same_sizes_twice_give_the_same_plan(gaps: Gaps) -> None:
    sizes = np.random.default_rng(1).integers(2, 300, 5000).astype(np.uint32)
    one, two = (plan_rows(sizes, 65, gaps) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def test_plan_of_a_varied_corpus_is_nearly_full_and_cuts_few_documents_that_fit_a_row() -> None:
    sizes = np.random.default_rng(0).lognormal(4.5, 0.7, 20_000).astype(np.uint32) + 2
    padded, filled = plan_rows(sizes, 257, Gaps.PAD), plan_rows(sizes, 257, Gaps.FILL)
    padding = padded.size[padded.document == PADDING].sum()
    assert padding / (padded.rows * 257) < 0.005
    assert filled.cut - (sizes > 257).sum() < 0.02 * len(sizes)
    assert filled.lost / sizes.sum() < 0.005


def test_plan_holds_no_more_than_36_bytes_a_document() -> None:
    sizes = np.random.default_rng(0).lognormal(4.5, 0.7, 100_000).astype(np.uint32) + 2
    tracemalloc.start()
    plan_rows(sizes, 257, Gaps.FILL)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (peak + sizes.nbytes) / len(sizes) < 36
