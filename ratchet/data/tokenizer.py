"""The tokenizer: byte-pair merges as plain data, encoding through tiktoken, the true byte length of each token.

Refuses to know where documents come from, how merges are learnt (tokenizer_training.py) and how rows are packed.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tiktoken

from ratchet.core import atomic
from ratchet.core.errors import InputError

SPECIALS = ("<|bos|>", "<|pad|>", "<|reserved_2|>", "<|reserved_3|>")
"""The reserved tokens, in id order after the last merge. Text that spells one is encoded as ordinary text."""

BOS_ALONE = frozenset(SPECIALS[:1])
SMALLEST_VOCABULARY = 256 + len(SPECIALS)

# The split pattern of GPT-4's tokenizer with numbers of one or two digits. Its possessive quantifiers are written as
# plain ones: here they match the same, and the regex engine is 1.4 times as fast without them.
PATTERN = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
# Without the look-ahead the engine needs no backtracking: 1.5 times as fast, and it cannot overflow its stack. The two
# patterns differ only where two blanks that are no line ends precede something else: see `_has_blank_pair`.
PLAIN_PATTERN = PATTERN.replace(r"|\s+(?!\S)", "")

ASCII_BLANKS = ("  ", "\t", "\x0b", "\x0c")
ALL_BLANKS = (*ASCII_BLANKS, *"\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000", *map(chr, range(0x2000, 0x200B)))
BLANK_PAIR = re.compile(r"[^\S\r\n]{2}")
# A longer run overflows the stack of the backtracking engine (at 10^6 blanks), which is a panic and no exception.
LONGEST_BLANK_RUN = 1000
LONG_BLANKS = re.compile(rf"\s{{{LONGEST_BLANK_RUN}}}")

SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
LONE_SURROGATE = re.compile("[\ud800-\udfff]")

FORMAT, VERSION = "ratchet-bpe", 1


class Tokenizer:
    """Encodes text to ids and back. Ids: merges by rank (the first 256 of them single bytes), then `SPECIALS`.

    `vocab_size`: number of ids. `bos`, `pad`: ids of the first two specials. `token_bytes`: int32 [vocab_size], the
    number of UTF-8 bytes each token stands for, 0 for a special. `surrogates_replaced`: lone surrogates met so far.
    """

    def __init__(self, merges: Sequence[bytes]) -> None:
        self.merges = tuple(merges)
        self.vocab_size = len(self.merges) + len(SPECIALS)
        self.bos, self.pad = len(self.merges), len(self.merges) + 1
        self.token_bytes = np.array([len(piece) for piece in self.merges] + [0] * len(SPECIALS), dtype=np.int32)
        self.surrogates_replaced = 0
        ranks = {piece: rank for rank, piece in enumerate(self.merges)}
        specials = {name: self.bos + place for place, name in enumerate(SPECIALS)}
        self._exact, self._plain = (
            tiktoken.Encoding(FORMAT, pat_str=pattern, mergeable_ranks=ranks, special_tokens=specials)
            for pattern in (PATTERN, PLAIN_PATTERN)
        )

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """The tokenizer saved in `folder`. Raises InputError when a file is missing, broken, or of another version."""
        path = Path(folder) / "tokenizer.json"
        tokenizer = cls(_read_merges(path))
        _check_token_bytes(Path(folder) / "token_bytes.npy", tokenizer.token_bytes)
        return tokenizer

    def save(self, folder: Path) -> None:
        """Write `tokenizer.json` and `token_bytes.npy` into `folder`, which exists; same merges, same bytes."""
        document = {
            "format": FORMAT,
            "version": VERSION,
            "pattern": PATTERN,
            "specials": {name: self.bos + place for place, name in enumerate(SPECIALS)},
            "merges": [base64.b64encode(piece).decode("ascii") for piece in self.merges],
        }
        atomic.write_json(folder / "tokenizer.json", document)
        np.save(folder / "token_bytes.npy", self.token_bytes, allow_pickle=False)

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, without a BOS. Lone surrogates become U+FFFD and are counted in `surrogates_replaced`."""
        return self.encode_array(text).tolist()

    def encode_array(self, text: str) -> npt.NDArray[np.uint32]:
        """`encode` as an array, which spares the list of Python integers."""
        try:
            return self._encode_unicode(text)
        except UnicodeEncodeError:
            text, replaced = replace_surrogates(text)
            self.surrogates_replaced += replaced
            return self._encode_unicode(text)

    def encode_documents(self, texts: Iterable[str]) -> Iterator[npt.NDArray[np.uint32]]:
        """`encode_array` of each text, in order, one at a time."""
        return map(self.encode_array, texts)

    def encode_joined(self, texts: Sequence[str]) -> npt.NDArray[np.uint32]:
        """The ids of all `texts` one after the other, a BOS before each: what `encode_array` gives, in few calls.

        A call costs as much as 80 bytes of text. Texts that need care (pairs of blanks, surrogates, the spelling of a
        special) are encoded by themselves; between them whole runs are, with BOS as a special between the documents.
        """
        parts: list[npt.NDArray[np.uint32]] = []
        bos = np.array([self.bos], dtype=np.uint32)
        for easy, run in groupby(texts, _is_easy):
            if easy:
                joined = "".join(chain.from_iterable((SPECIALS[0], text) for text in run))
                parts.append(self._plain.encode_to_numpy(joined, allowed_special=BOS_ALONE, disallowed_special=()))
            else:
                parts += chain.from_iterable((bos, self.encode_array(text)) for text in run)
        return np.concatenate(parts)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`; a special decodes to its name, bytes that are no UTF-8 (a cut character) to U+FFFD.

        Raises InputError for an id outside the vocabulary.
        """
        ids = [int(one) for one in ids]
        for one in ids:
            if not 0 <= one < self.vocab_size:
                raise InputError("decode", f"id {one} is not in 0..{self.vocab_size - 1}", "use this tokenizer's ids")
        return self._exact.decode(ids)

    def _encode_unicode(self, text: str) -> npt.NDArray[np.uint32]:
        if not _has_blank_pair(text):
            return _ids(self._plain, text)
        parts = list(cut_long_blanks(text))
        return _ids(self._exact, text) if len(parts) == 1 else np.concatenate([_ids(self._exact, p) for p in parts])


def _is_easy(text: str) -> bool:
    """Whether the plain pattern fits `text` and nothing in it reads as a special or is no Unicode."""
    if "<|" in text or _has_blank_pair(text):
        return False
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def _ids(encoding: tiktoken.Encoding, text: str) -> npt.NDArray[np.uint32]:
    return encoding.encode_to_numpy(text, allowed_special=set(), disallowed_special=())


def _has_blank_pair(text: str) -> bool:
    """Whether two blanks other than line ends follow each other in `text`. May be wrong on the safe side only.

    Asks for single characters first: that runs at memory speed, the regular expression at 40 MB/s.
    """
    blanks = ASCII_BLANKS if text.isascii() else ALL_BLANKS
    return any(map(text.__contains__, blanks)) and BLANK_PAIR.search(text) is not None


def cut_long_blanks(text: str) -> Iterator[str]:
    """`text` in pieces, cut only inside runs of `LONGEST_BLANK_RUN` blanks; joined they are `text`."""
    start = 0
    for run in LONG_BLANKS.finditer(text):
        yield text[start : run.end()]
        start = run.end()
    if start < len(text) or start == 0:
        yield text[start:]


def replace_surrogates(text: str) -> tuple[str, int]:
    """`text` as valid Unicode: pairs of surrogates joined, lone ones replaced by U+FFFD; and how many were replaced."""
    joined = SURROGATE_PAIR.sub(lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), text)
    return LONE_SURROGATE.subn("\ufffd", joined)


def _read_merges(path: Path) -> list[bytes]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(path, "no such file", "run the stage that makes it: `dvc repro tokenizer`") from None
    except ValueError as error:
        raise InputError(path, f"is no JSON: {error}", "run `dvc repro tokenizer` again") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError(path, f"is no {FORMAT} file", "point to a folder that the tokenizer stage has made")
    for key, expected in (("version", VERSION), ("pattern", PATTERN)):
        if document.get(key) != expected:
            what = f"has {key} {document.get(key)!r}, this version of ratchet reads {expected!r}"
            raise InputError(path, what, "run `dvc repro tokenizer` again")
    return _check_merges(path, document)


def _check_merges(path: Path, document: dict[str, Any]) -> list[bytes]:
    try:
        merges = [base64.b64decode(line, validate=True) for line in document["merges"]]
    except (KeyError, TypeError, binascii.Error) as error:
        raise InputError(path, f"its merges are damaged: {error!r}", "run `dvc repro tokenizer` again") from None
    specials = {name: len(merges) + place for place, name in enumerate(SPECIALS)}
    single_bytes = {piece for piece in merges[:256] if len(piece) == 1}
    if len(single_bytes) != 256 or len(set(merges)) != len(merges) or document.get("specials") != specials:
        what = f"its {len(merges)} merges lack a byte, hold one twice, or do not fit its specials"
        raise InputError(path, what, "run `dvc repro tokenizer` again")
    return merges


def _check_token_bytes(path: Path, expected: npt.NDArray[np.int32]) -> None:
    try:
        found = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise InputError(path, "no such file", "run the stage that makes it: `dvc repro tokenizer`") from None
    except (ValueError, EOFError) as error:
        raise InputError(path, f"is no .npy file: {error}", "run `dvc repro tokenizer` again") from None
    if not np.array_equal(found, expected):
        raise InputError(path, "is not the byte lengths of tokenizer.json", "run `dvc repro tokenizer` again")
