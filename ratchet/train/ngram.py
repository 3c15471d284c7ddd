"""The baseline a model must beat: an interpolated Kneser-Ney model over bytes, with five bytes of context.

Counts with sorted arrays, no dictionary: 5 MB of text in seconds. Knows bytes and documents; refuses to know tokens,
rows and models. Method: Kneser and Ney (1995), in the interpolated form of Chen and Goodman (1999) with one discount.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ratchet.core.errors import InputError

CONTEXT_BYTES = 5
DISCOUNT = 0.8
ALPHABET = 256

BITS = 9
"""Of one symbol in a packed n-gram: 0 is the start of a document, byte b is b + 1; six of them fill 54 bits."""

Codes = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Order:
    """The n-grams of one length: sorted codes [n] with a count each, and their contexts, sorted [c].

    `total` and `kinds` are the sum of counts and the number of n-grams of the context at the same place.
    """

    codes: Codes
    counts: npt.NDArray[np.int64]
    contexts: Codes
    total: npt.NDArray[np.int64]
    kinds: npt.NDArray[np.int64]


@dataclass(frozen=True)
class ByteNgram:
    """A trained model; `orders[k]` has k symbols of context."""

    orders: tuple[Order, ...]
    discount: float

    @classmethod
    def train(
        cls, documents: Iterable[bytes], *, context: int = CONTEXT_BYTES, discount: float = DISCOUNT
    ) -> ByteNgram:
        """Count every byte of `documents` after up to `context` symbols, the first of which may be a document's start.

        Counts are occurrences where nothing longer exists (full context, or one that begins with the document) and
        numbers of different symbols before elsewhere. Raises InputError without any byte.
        """
        symbols, place = pack_symbols(documents)
        if not (place > 0).any():
            raise InputError("n-gram baseline", "no text to train on", "give the train split documents with text")
        orders: list[Order] = []
        longer: Codes | None = None
        for size in range(context, -1, -1):
            here = _ngrams(symbols, place, size, exactly=longer is not None)
            codes = here if longer is None else np.concatenate([here, longer & _mask(size + 1)])
            if len(codes):  # else no document is this long
                orders.append(_order(codes))
                longer = orders[-1].codes
        return cls(tuple(reversed(orders)), discount)

    def nats(self, documents: Sequence[bytes]) -> npt.NDArray[np.float64]:
        """Negative log likelihood of each document [n], in nats: the sum over all its bytes."""
        symbols, place = pack_symbols(documents)
        is_byte = place > 0
        owner = np.cumsum(place == 0)[is_byte] - 1
        costs = -np.log(self.probabilities(symbols, place))
        return np.bincount(owner, costs, len(documents)).astype(np.float64, copy=False)

    def probabilities(self, symbols: npt.NDArray[np.uint16], place: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """P(byte | what came before in its document) of every byte in `pack_symbols`' form, in order."""
        is_byte = place > 0
        p = np.full(int(is_byte.sum()), 1 / ALPHABET)
        for size, order in enumerate(self.orders):
            known = place[is_byte] >= size
            p[known] = self._mix(order, _ngrams(symbols, place, size), p[known])
        return p

    def _mix(self, order: Order, codes: Codes, below: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """One step of the interpolation: discounted counts of this order, the freed mass spread as `below` says."""
        context, seen_context = _find(order.contexts, codes >> np.uint64(BITS))
        gram, seen = _find(order.codes, codes)
        count = np.where(seen, order.counts[gram] - self.discount, 0.0)
        mixed = (count + self.discount * order.kinds[context] * below) / order.total[context]
        return np.where(seen_context, mixed, below)


def pack_symbols(documents: Iterable[bytes]) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.int64]]:
    """All documents as one array of symbols, each begun by 0, and every symbol's place in its document."""
    parts = list(documents)
    lengths = np.array([len(part) + 1 for part in parts], dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    place = np.arange(lengths.sum(), dtype=np.int64) - np.repeat(starts, lengths)
    symbols = np.zeros(len(place), dtype=np.uint16)
    symbols[place > 0] = np.frombuffer(b"".join(parts), dtype=np.uint8).astype(np.uint16) + 1
    return symbols, place


def _ngrams(
    symbols: npt.NDArray[np.uint16], place: npt.NDArray[np.int64], context: int, *, exactly: bool = False
) -> Codes:
    """The codes of the n-grams that end in a byte with `context` symbols of its document before it, in text order.

    `exactly`: only those that begin with the document's start.
    """
    ends = np.flatnonzero((place == context) & (place > 0) if exactly else place >= max(context, 1))
    codes = np.zeros(len(ends), dtype=np.uint64)
    for back in range(context, -1, -1):
        codes = (codes << np.uint64(BITS)) | symbols[ends - back].astype(np.uint64)
    return codes


def _mask(symbols: int) -> np.uint64:
    return np.uint64((1 << (BITS * symbols)) - 1)


def _order(codes: Codes) -> Order:
    """Count equal codes; `codes` is sorted in place."""
    codes.sort()
    unique, counts = _runs(codes)
    contexts, kinds = _runs(unique >> np.uint64(BITS))
    total = np.add.reduceat(counts, np.cumsum(kinds) - kinds)
    return Order(unique, counts, contexts, total, kinds)


def _runs(codes: Codes) -> tuple[Codes, npt.NDArray[np.int64]]:
    """The different values of sorted `codes`, and how often each is there."""
    first = np.flatnonzero(np.concatenate(([True], codes[1:] != codes[:-1])))
    return codes[first], np.diff(np.append(first, len(codes)))


def _find(known: Codes, codes: Codes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Where each code is in sorted `known` (some valid place if it is not), and whether it is."""
    at = np.minimum(np.searchsorted(known, codes), len(known) - 1)
    return at, known[at] == codes
