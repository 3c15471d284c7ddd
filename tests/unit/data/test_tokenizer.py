"""The tokenizer's promises: exact on any Unicode text, true byte lengths, a data file, errors on one line."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from ratchet.core.errors import InputError
from ratchet.data.tokenizer import SPECIALS, Tokenizer, cut_long_blanks, replace_surrogates
from ratchet.data.tokenizer_training import train

# The published GPT-4 pattern with numbers of 1 or 2 digits, as it is written there: the reference for ours.
PUBLISHED = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
TEXTS = [
    "The ratchet turns one way only; what was better is kept, what was worse is let go.",
    "Größe, façade, naïve: 12345 words and 678 more.\n\n    indented code\n\treturn x  # two  blanks",
    "日本語のテキストと中文 🙂🙂 emoji, don't they'll WE'VE",
] * 3

unicode_text = st.text(st.characters(exclude_categories=["Cs"]))
blank_text = st.text(st.sampled_from(" \t\n\r\x0b\x0c\x1c\x85\xa0\u2003\u2028\u3000aB1.é'"), max_size=40)


def learn(texts: list[str], vocab_size: int = 400) -> Tokenizer:
    return train(texts, vocab_size=vocab_size, max_characters=10**6, max_document_characters=10**6, where="corpus")[0]


TOKENIZER = learn(TEXTS)
REFERENCE = tiktoken.Encoding(
    "reference", pat_str=PUBLISHED, mergeable_ranks={m: i for i, m in enumerate(TOKENIZER.merges)}, special_tokens={}
)


@given(st.lists(unicode_text | blank_text | st.sampled_from([*SPECIALS, "<|", "\ud800", "a\udfff b", "", " ", "x  "])))
def test_tokenizer_joined_texts_are_those_of_each_with_a_bos_before_it(texts: list[str]) -> None:
    texts = [*texts, "end"]
    expected = [one for text in texts for one in (TOKENIZER.bos, *TOKENIZER.encode(text))]
    before = TOKENIZER.surrogates_replaced
    assert TOKENIZER.encode_joined(texts).tolist() == expected
    lone = sum(replace_surrogates(text)[1] for text in texts)
    assert TOKENIZER.surrogates_replaced == before + lone


@given(unicode_text)
def test_tokenizer_any_unicode_text_round_trips_and_its_token_bytes_sum_to_its_length(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert TOKENIZER.token_bytes[ids].sum() == len(text.encode())


@given(st.one_of(unicode_text, blank_text, st.lists(st.one_of(blank_text, st.sampled_from(TEXTS))).map("".join)))
def test_tokenizer_fast_patterns_give_the_published_patterns_ids(text: str) -> None:
    assert TOKENIZER.encode(text) == REFERENCE.encode_ordinary(text)


@pytest.mark.parametrize(
    "text",
    [" " * 1_000_001 + "b", "a" + " \t" * 500_000 + "b", "\u3000" * 1_000_001 + "b", "\n" * 300_000, "a" * 300_000],
    ids=["blanks", "tabs", "wide blanks", "line ends", "letters"],
)
def test_tokenizer_a_run_that_overflows_the_regex_engine_round_trips(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert TOKENIZER.token_bytes[ids].sum() == len(text.encode())


@given(st.lists(st.one_of(st.just(" " * 700), st.just("\n" * 1001), blank_text), max_size=6).map("".join))
def test_cut_long_blanks_any_text_joins_again(text: str) -> None:
    assert "".join(cut_long_blanks(text)) == text


def test_tokenizer_text_that_spells_a_special_is_ordinary_text() -> None:
    text = "".join(SPECIALS)
    ids = TOKENIZER.encode(text)
    assert max(ids) < TOKENIZER.bos
    assert TOKENIZER.decode(ids) == text


def test_tokenizer_lone_surrogates_are_replaced_and_counted() -> None:
    tokenizer = Tokenizer(TOKENIZER.merges)
    assert tokenizer.decode(tokenizer.encode("a\ud800b\udfff")) == "a\ufffdb\ufffd"
    assert tokenizer.surrogates_replaced == 2
    tokenizer.encode("plain")
    assert tokenizer.surrogates_replaced == 2


def test_replace_surrogates_a_pair_becomes_its_character() -> None:
    assert replace_surrogates("\ud83d\ude42\ud83d") == ("🙂\ufffd", 1)


def test_tokenizer_part_of_a_character_counts_its_own_bytes_and_not_the_replacement_characters() -> None:
    ids = TOKENIZER.encode("鿃")
    assert len(ids) > 1
    assert TOKENIZER.token_bytes[ids].sum() == 3
    assert sum(len(TOKENIZER.decode([one]).encode()) for one in ids) > 3


def test_tokenizer_specials_follow_the_merges_and_have_no_bytes() -> None:
    assert (TOKENIZER.bos, TOKENIZER.pad, TOKENIZER.vocab_size) == (396, 397, 400)
    assert TOKENIZER.token_bytes.dtype == np.int32
    assert TOKENIZER.token_bytes[TOKENIZER.bos :].tolist() == [0, 0, 0, 0]
    assert TOKENIZER.token_bytes[: TOKENIZER.bos].min() == 1
    assert TOKENIZER.decode([TOKENIZER.bos, *TOKENIZER.encode("x")]) == "<|bos|>x"


def test_tokenizer_an_id_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(InputError, match=r"id 400 is not in 0\.\.399"):
        TOKENIZER.decode([400])


def test_tokenizer_saved_twice_has_the_same_bytes_and_loads_equal(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        learn(TEXTS).save(folder)
    one, two = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders)
    assert one == two
    assert set(one) == {"tokenizer.json", "token_bytes.npy"}
    loaded = Tokenizer.load(folders[0])
    assert loaded.merges == TOKENIZER.merges
    assert loaded.encode(TEXTS[1]) == TOKENIZER.encode(TEXTS[1])


def test_tokenizer_file_is_data_that_tiktoken_alone_can_load(tmp_path: Path) -> None:
    TOKENIZER.save(tmp_path)
    data = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    encoding = tiktoken.Encoding(
        "mine",
        pat_str=data["pattern"],
        mergeable_ranks={base64.b64decode(merge): rank for rank, merge in enumerate(data["merges"])},
        special_tokens=data["specials"],
    )
    assert encoding.encode_ordinary(TEXTS[2]) == TOKENIZER.encode(TEXTS[2])


def damaged(data: dict[str, object], **changes: object) -> str:
    return json.dumps({**data, **changes})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: "{", "is no JSON"),
        (lambda data: "[]", "is no ratchet-bpe file"),
        (lambda data: damaged(data, format="other"), "is no ratchet-bpe file"),
        (lambda data: damaged(data, version=2), "has version 2"),
        (lambda data: damaged(data, pattern="."), r"has pattern '\.'"),
        (lambda data: damaged(data, merges=["%"]), "merges are damaged"),
        (lambda data: damaged(data, merges=data["merges"][:300]), "300 merges"),
        (lambda data: damaged(data, merges=data["merges"][1:] + data["merges"][:1]), "lack a byte"),
        (lambda data: damaged(data, merges=[*data["merges"][:-1], data["merges"][0]]), "hold one twice"),
        (lambda data: damaged(data, specials={"<|bos|>": 0}), "do not fit its specials"),
    ],
)
def test_tokenizer_a_damaged_file_is_refused_with_its_path(tmp_path: Path, change, message: str) -> None:
    TOKENIZER.save(tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_text(change(json.loads(path.read_text(encoding="utf-8"))), encoding="utf-8")
    with pytest.raises(InputError, match=message) as error:
        Tokenizer.load(tmp_path)
    assert str(path) in str(error.value)


def test_tokenizer_missing_or_foreign_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"tokenizer.json: no such file"):
        Tokenizer.load(tmp_path)
    TOKENIZER.save(tmp_path)
    path = tmp_path / "token_bytes.npy"
    np.save(path, TOKENIZER.token_bytes * 2)
    with pytest.raises(InputError, match=r"token_bytes.npy: is not the byte lengths"):
        Tokenizer.load(tmp_path)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(InputError, match=r"token_bytes.npy: is no .npy file"):
        Tokenizer.load(tmp_path)
    path.unlink()
    with pytest.raises(InputError, match=r"token_bytes.npy: no such file"):
        Tokenizer.load(tmp_path)
