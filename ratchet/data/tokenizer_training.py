"""Learning byte-pair merges from training documents with rustbpe.

Refuses to know where the documents come from and what is done with the tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import rustbpe

from ratchet.core.errors import InputError
from ratchet.data.tokenizer import (
    PATTERN,
    SMALLEST_VOCABULARY,
    SPECIALS,
    Tokenizer,
    cut_long_blanks,
    replace_surrogates,
)


@dataclass
class Sample:
    """What of the corpus the merges were learnt from."""

    documents: int = 0
    characters: int = 0
    bytes: int = 0
    surrogates_replaced: int = 0


def train(
    texts: Iterable[str], *, vocab_size: int, max_characters: int, max_document_characters: int, where: object
) -> tuple[Tokenizer, Sample]:
    """A tokenizer of exactly `vocab_size` ids learnt from the first documents of `texts`, and what it was learnt from.

    `max_characters`: read no more than these, over all documents; `max_document_characters`: nor than these of one.
    Deterministic: the same texts give the same merges, whatever the number of threads. `where` heads an error.
    Raises InputError when `vocab_size` cannot hold every byte and the specials, when the texts are empty, or when
    they have too few distinct pairs for so many merges.
    """
    if vocab_size < SMALLEST_VOCABULARY:
        what = f"vocab_size = {vocab_size} cannot hold 256 bytes and {len(SPECIALS)} specials"
        raise InputError("tokenizer", what, f"set tokenizer.vocab_size to {SMALLEST_VOCABULARY} or more")
    sample = Sample()
    trainer = rustbpe.Tokenizer()  # pyright: ignore[reportAttributeAccessIssue]  (it has no stubs)
    trainer.train_from_iterator(
        _pieces(texts, sample, max_characters, max_document_characters), vocab_size - len(SPECIALS), pattern=PATTERN
    )
    if sample.characters == 0:
        raise InputError(where, f"holds no text in {sample.documents} documents", "give the prepare stage some text")
    merges = [bytes(piece) for piece, _ in sorted(trainer.get_mergeable_ranks(), key=lambda entry: entry[1])]
    if len(merges) + len(SPECIALS) < vocab_size:
        possible = len(merges) + len(SPECIALS)
        what = f"{sample.bytes} bytes of text give {possible} tokens, fewer than vocab_size = {vocab_size}"
        raise InputError(where, what, f"set tokenizer.vocab_size to at most {possible}, or give more text")
    return Tokenizer(merges), sample


def _pieces(texts: Iterable[str], sample: Sample, max_characters: int, max_document_characters: int) -> Iterator[str]:
    """The texts within both caps, as valid Unicode, cut where a run of blanks would overflow the regex engine."""
    for text in texts:
        left = max_characters - sample.characters
        if left <= 0:
            return
        text, replaced = replace_surrogates(text[: min(left, max_document_characters)])
        sample.documents += 1
        sample.characters += len(text)
        sample.bytes += len(text.encode())
        sample.surrogates_replaced += replaced
        yield from cut_long_blanks(text)
