"""Which split a document goes to: a function of its text and a seed, never of the other documents; and duplicates.

Refuses to know files. Memory: about 105 bytes per distinct document, for the set of digests (measured, docs/data.md).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Literal, get_args

from ratchet.data.sources.protocol import Document, Pool

SplitName = Literal["train", "val", "test"]
SPLITS: tuple[SplitName, ...] = get_args(SplitName)
KEY_BYTES = 16


@dataclass(frozen=True)
class SplitRule:
    """Shares of the documents (0 to 1) that go to validation and to test; the rest trains. `seed` salts the hash."""

    val_share: float
    test_share: float
    seed: int

    def digest(self, text_utf8: bytes) -> bytes:
        """The salted sha256 of a text, 32 bytes."""
        return hashlib.sha256(b"%d:" % self.seed + text_utf8).digest()

    def split(self, digest: bytes, pool: Pool = "hashed") -> SplitName:
        """The split of the document with this digest. A held-out document keeps the proportion of val to test."""
        if pool == "train":
            return "train"
        held_out = self.val_share + self.test_share
        point = int.from_bytes(digest[:8], "big") / 2**64 * (held_out if pool == "held_out" else 1.0)
        if point < self.val_share:
            return "val"
        return "test" if point < held_out or pool == "held_out" else "train"


@dataclass
class SplitCount:
    """What a split holds: documents, bytes of UTF-8, characters (code points), and documents per language."""

    documents: int = 0
    bytes: int = 0
    characters: int = 0
    languages: dict[str, int] = field(default_factory=dict)

    def add(self, text: str, size: int, language: str) -> None:
        """Count one document of `size` bytes."""
        self.documents += 1
        self.bytes += size
        self.characters += len(text)
        self.languages[language] = self.languages.get(language, 0) + 1


@dataclass
class Dropped:
    """What was left out or mended. `within`: seen before in the same split; `across`: seen before in another one."""

    empty: int = 0
    duplicates_within: int = 0
    duplicates_across: int = 0
    surrogates_replaced: int = 0


class Splitter:
    """Places documents one by one; remembers the digests of what it has placed."""

    def __init__(self, rule: SplitRule) -> None:
        self.rule = rule
        self.counts = {name: SplitCount() for name in SPLITS}
        self.dropped = Dropped()
        self._seen: dict[Literal["train", "held_out"], set[bytes]] = {"train": set(), "held_out": set()}

    def place(self, document: Document) -> tuple[SplitName, str] | None:
        """The split and the text to store; None when it is dropped. Lone surrogates become U+FFFD, counted."""
        if document.text is None or not document.text.strip():
            self.dropped.empty += 1
            return None
        text, encoded = self._encode(document.text)
        digest = self.rule.digest(encoded)
        split = self.rule.split(digest, document.pool)
        if self._is_duplicate(digest[:KEY_BYTES], split):
            return None
        self.counts[split].add(text, len(encoded), document.language)
        return split, text

    def _encode(self, text: str) -> tuple[str, bytes]:
        try:
            return text, text.encode()
        except UnicodeEncodeError:
            mended = "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in text)
            self.dropped.surrogates_replaced += sum(a != b for a, b in zip(text, mended, strict=True))
            return mended, mended.encode()

    def _is_duplicate(self, key: bytes, split: SplitName) -> bool:
        """Remember `key`, or count it. Equal texts of one pool share a hash, so val and test never share a text."""
        own, other = ("train", "held_out") if split == "train" else ("held_out", "train")
        if key in self._seen[own]:
            self.dropped.duplicates_within += 1
            return True
        if key in self._seen[other]:
            self.dropped.duplicates_across += 1
            return True
        self._seen[own].add(key)
        return False
