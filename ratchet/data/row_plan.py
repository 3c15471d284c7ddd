"""Which document goes into which row: best fit over all documents at once, known by their sizes alone.

Refuses to know ids, files and splits. A document of size n is a BOS and n - 1 ids to predict.
"""

from __future__ import annotations

from array import array
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

PADDING = 0xFFFFFFFF
"""Stands for a document where the rest of a row is padding."""


class Gaps(Enum):
    """What becomes of the rest of a row that no document fits."""

    FILL = "fill"  # a document is cut there and continues in the next row: training rows are full
    PAD = "pad"  # it is padded: only a document longer than a row is cut


class Plan(NamedTuple):
    """Pieces of documents in row order, 12 bytes each: `document`, `start` (0 is its BOS) and `size` (slots).

    Pieces lie end to end, so that piece i begins in slot `sum(size[:i])` of all rows; `PADDING` fills a row up. A piece
    that continues a document starts with the last id of the piece before: context there, a target only once.
    `rows`: full rows. `lost`: ids to predict that lay in the unfinished last row, which is dropped. `cut`: documents
    with ids to predict in more than one row.
    """

    document: npt.NDArray[np.uint32]
    start: npt.NDArray[np.uint32]
    size: npt.NDArray[np.uint32]
    rows: int
    lost: int
    cut: int


def plan_rows(sizes: npt.NDArray[np.uint32], row_slots: int, gaps: Gaps) -> Plan:
    """Lay documents of `sizes` (slots, each at least 2) into rows of `row_slots` (at least 2).

    A row begins with what is left of the document that its predecessor cut, else with the longest document left, and
    is then filled, each time with the longest one that fits. Finding it costs O(log n) amortised, whatever the number
    of documents; memory is about 28 bytes per document.
    """
    shelf, pieces = _Shelf(sizes, row_slots), _Pieces()
    gap = row_slots
    tail: tuple[int, int] | None = None  # what must begin the next row: a document and where in it
    while True:
        document, start = tail or (shelf.take_longest() if gap == row_slots else shelf.take(gap), 0)
        if document is None and gaps is Gaps.FILL:
            document = shelf.take_longest()
        if document is None:
            if gap == row_slots:
                return pieces.finish(lost=0)
            if gaps is Gaps.FILL:
                return pieces.finish(lost=pieces.drop(row_slots - gap))
            pieces.add(PADDING, 0, gap)
            pieces.rows += 1
            gap = row_slots
            continue
        left = shelf.size(document) - start
        size = min(left, gap)
        pieces.add(document, start, size)
        tail = None if size == left else (document, start + size - 1)
        pieces.cut += size < left and start == 0 and size > 1
        pieces.rows += size == gap
        gap = gap - size or row_slots


class _Shelf:
    """The documents not yet laid, by size. A union-find over sizes skips those that have run out."""

    def __init__(self, sizes: npt.NDArray[np.uint32], row_slots: int) -> None:
        self._sizes = np.ascontiguousarray(sizes).data  # indexing an array takes five times as long
        order = np.argsort(sizes, kind="stable").astype(np.uint32)
        bounds = np.searchsorted(sizes, np.arange(row_slots + 2), sorter=order)
        self._order = order.data
        self._next = bounds[:-1].tolist()  # per size: place in `order` of the next document, and where its size ends
        self._end = bounds[1:].tolist()
        self._longer = (int(bounds[-1]), len(order))  # those longer than a row
        self._below = list(range(row_slots + 1))  # per size: where to look on for the longest that is left
        self._row_slots = row_slots

    def size(self, document: int) -> int:
        return self._sizes[document]

    def take(self, slots: int) -> int | None:
        """Remove and return the longest document of at most `slots`, the first of equals."""
        size = self._find(slots)
        while size and self._next[size] == self._end[size]:
            self._below[size] = size - 1
            size = self._find(size)
        if not size:
            return None
        place = self._next[size]
        self._next[size] = place + 1
        return self._order[place]

    def take_longest(self) -> int | None:
        """Remove and return the longest document of all."""
        first, end = self._longer
        if first == end:
            return self.take(self._row_slots)
        self._longer = (first, end - 1)
        return self._order[end - 1]

    def _find(self, size: int) -> int:
        below = self._below
        while below[size] != size:
            below[size] = below[below[size]]
            size = below[size]
        return size


class _Pieces:
    """A plan in the making."""

    def __init__(self) -> None:
        self.document, self.start, self.size = array("I"), array("I"), array("I")
        self.rows = self.cut = 0

    def add(self, document: int, start: int, size: int) -> None:
        self.document.append(document)
        self.start.append(start)
        self.size.append(size)

    def drop(self, slots: int) -> int:
        """Remove the last pieces, `slots` in all; returns how many ids to predict went with them."""
        lost = 0
        while slots:
            size = self.size.pop()
            self.document.pop()
            self.start.pop()
            slots -= size
            lost += size - 1
        return lost

    def finish(self, *, lost: int) -> Plan:
        arrays = (np.frombuffer(column, dtype=np.uint32) for column in (self.document, self.start, self.size))
        return Plan(*arrays, rows=self.rows, lost=lost, cut=self.cut)
