"""The n-gram baseline against a slow implementation that is plainly the definition."""

from __future__ import annotations

import math
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.core.errors import InputError
from ratchet.train.ngram import ByteNgram, pack_symbols

START = -1
SMALL = [b"the cat sat on the mat", b"the dog sat on the log", b"a cat and a dog", "déjà vu, naïve".encode(), b"x", b""]
HELD_OUT = [b"the cat and the dog", "naïve cats".encode(), b"", b"zzz\x00\xff", b"t"]


class Reference:
    """Interpolated Kneser-Ney, written as the formulas are: nested dictionaries, one byte at a time."""

    def __init__(self, documents: list[bytes], context: int, discount: float) -> None:
        self.context, self.discount = context, discount
        raw: list[Counter[tuple[int, ...]]] = [Counter() for _ in range(context + 2)]
        for document in documents:
            padded = (START, *document)
            for size in range(1, context + 2):
                for end in range(1, len(padded)):
                    if end - size + 1 >= 0:
                        raw[size][padded[end - size + 1 : end + 1]] += 1
        self.counts: list[dict[tuple[int, ...], int]] = [{} for _ in range(context + 2)]
        longest = max(size for size in range(1, context + 2) if raw[size])
        for size in range(1, longest + 1):
            for gram, count in raw[size].items():
                before = {longer[0] for longer in raw[size + 1] if longer[1:] == gram} if size < longest else set()
                occurs = size == longest or gram[0] == START
                self.counts[size][gram] = count if occurs else len(before)
        self.continuations: dict[tuple[int, ...], dict[int, int]] = defaultdict(dict)
        for size in range(1, longest + 1):
            for gram, count in self.counts[size].items():
                self.continuations[gram[:-1]][gram[-1]] = count

    def probability(self, history: tuple[int, ...], byte: int) -> float:
        history = history[-self.context :] if self.context else ()
        below = self.probability(history[1:], byte) if history else 1 / 256
        after = self.continuations.get(history)
        if not after:
            return below
        total = sum(after.values())
        count = max(after.get(byte, 0) - self.discount, 0)
        return count / total + self.discount * len(after) / total * below

    def nats(self, document: bytes) -> float:
        padded = (START, *document)
        return -sum(math.log(self.probability(padded[:end], padded[end])) for end in range(1, len(padded)))


@pytest.mark.parametrize("context", [0, 1, 2, 5])
def test_nats_of_small_text_equal_the_reference(context: int) -> None:
    fast = ByteNgram.train(SMALL, context=context, discount=0.8).nats(HELD_OUT)
    slow = [Reference(SMALL, context, 0.8).nats(document) for document in HELD_OUT]
    np.testing.assert_allclose(fast, slow, rtol=1e-12)


@settings(max_examples=30, deadline=None)
@given(
    train=st.lists(st.binary(max_size=12), min_size=1, max_size=5).filter(any),
    test=st.lists(st.binary(max_size=10), min_size=1, max_size=3),
    discount=st.floats(0.05, 0.95),
)
def test_nats_of_any_bytes_equal_the_reference(train: list[bytes], test: list[bytes], discount: float) -> None:
    fast = ByteNgram.train(train, context=3, discount=discount).nats(test)
    slow = [Reference(train, 3, discount).nats(document) for document in test]
    np.testing.assert_allclose(fast, slow, rtol=1e-11, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(train=st.lists(st.binary(max_size=20), min_size=1, max_size=4).filter(any), history=st.binary(max_size=8))
def test_probabilities_of_all_bytes_after_any_history_sum_to_one(train: list[bytes], history: bytes) -> None:
    model = ByteNgram.train(train)
    symbols, place = pack_symbols([history + bytes([byte]) for byte in range(256)])
    last = np.arange(1, 257) * (len(history) + 1) - 1
    assert model.probabilities(symbols, place)[last].sum() == pytest.approx(1.0, abs=1e-12)


def test_training_without_text_is_refused() -> None:
    with pytest.raises(InputError, match="no text to train on"):
        ByteNgram.train([b"", b""])


def test_repeated_text_costs_less_than_other_text() -> None:
    model = ByteNgram.train([b"abcabcabc" * 20])
    same, other = model.nats([b"abcabcabc", b"cbacbacba"])
    assert same < other / 10
