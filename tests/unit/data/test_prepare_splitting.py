"""A document's split depends on its text and the seed alone; duplicates are dropped and counted."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from ratchet.data.sources.protocol import Document
from ratchet.data.splitting import SPLITS, SplitRule, Splitter

RULE = SplitRule(val_share=0.1, test_share=0.2, seed=0)


def placed(texts: list[str], rule: SplitRule = RULE) -> dict[str, str]:
    splitter = Splitter(rule)
    found = (splitter.place(Document(text, "en")) for text in texts)
    return {one[1]: one[0] for one in found if one is not None}


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1)), st.randoms())
def test_split_of_a_document_never_depends_on_the_others(texts: list[str], order: random.Random) -> None:
    whole = placed(texts)
    some = [text for text in texts if order.random() < 0.5]
    order.shuffle(some)
    assert placed(some).items() <= whole.items()


def test_split_shares_come_out_near_what_was_asked() -> None:
    texts = [f"document {number}" for number in range(20_000)]
    splits = list(placed(texts).values())
    assert [round(splits.count(name) / len(texts), 2) for name in SPLITS] == [0.7, 0.1, 0.2]


def test_split_seed_changes_which_documents_are_held_out() -> None:
    texts = [f"document {number}" for number in range(1000)]
    held = [
        {text for text, split in placed(texts, SplitRule(0.1, 0.2, seed)).items() if split == "val"} for seed in (0, 1)
    ]
    assert 0 < len(held[0] & held[1]) < 30 < len(held[0])


def test_split_is_pinned_for_a_known_text() -> None:
    rule = SplitRule(0.05, 0.05, 0)
    assert rule.digest(b"hello").hex().startswith("52cc056dcbee")
    assert placed(["hello"], rule) == {"hello": "train"}


def test_duplicate_within_a_split_is_dropped_and_counted() -> None:
    splitter = Splitter(RULE)
    for text in ("a", "b", "a", "a"):
        splitter.place(Document(text, "en"))
    assert splitter.dropped.duplicates_within == 2
    assert splitter.dropped.duplicates_across == 0
    assert sum(count.documents for count in splitter.counts.values()) == 2


def test_duplicate_of_a_held_out_document_never_trains() -> None:
    splitter = Splitter(RULE)
    first = splitter.place(Document("a", "en", "held_out"))
    assert first is not None
    assert first[0] in ("val", "test")
    assert splitter.place(Document("a", "en", "train")) is None
    assert splitter.dropped.duplicates_across == 1


def test_held_out_documents_keep_the_proportion_of_val_to_test_and_train_documents_train() -> None:
    splitter = Splitter(RULE)
    for number in range(3000):
        splitter.place(Document(f"held {number}", "en", "held_out"))
        splitter.place(Document(f"train {number}", "en", "train"))
    counts = {name: count.documents for name, count in splitter.counts.items()}
    assert counts["train"] == 3000
    assert abs(counts["val"] - 1000) < 100
    assert counts["val"] + counts["test"] == 3000


def test_document_without_text_is_dropped_and_counted() -> None:
    splitter = Splitter(RULE)
    assert [splitter.place(Document(text, "en")) for text in (None, "", " \n\t ")] == [None] * 3
    assert splitter.dropped.empty == 3


def test_lone_surrogates_are_replaced_and_counted_and_pairs_stay() -> None:
    splitter = Splitter(RULE)
    found = splitter.place(Document("a\ud800b\udfff 😀", "en"))
    assert found is not None
    assert found[1] == "a\ufffdb\ufffd 😀"
    assert splitter.dropped.surrogates_replaced == 2


def test_counts_are_in_bytes_and_code_points_and_by_language() -> None:
    splitter = Splitter(RULE)
    splitter.place(Document("日本 😀", "ja", "train"))
    splitter.place(Document("é", "fr", "train"))
    count = splitter.counts["train"]
    assert (count.documents, count.bytes, count.characters) == (2, 13, 5)
    assert count.languages == {"ja": 1, "fr": 1}
