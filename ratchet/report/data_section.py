"""The report's section on data: what the stages before training recorded, as a reader asks for it.

Knows the manifests of prepare, tokenizer and pack; refuses to know how they came about.
"""

from __future__ import annotations

from html import escape

from ratchet.report import markup
from ratchet.report.facts import Facts

SPLITS = ("train", "val", "test")


def data(facts: Facts) -> str:
    """The corpus, the vocabulary, and a table of the splits."""
    prepare, tokenizer, pack = (facts.metrics[stage] for stage in ("prepare", "tokenizer", "pack"))
    dropped = prepare["dropped"]
    corpus = {
        "corpus": prepare["corpus"],
        "from": prepare.get("origin") or prepare["source"],
        "licence": prepare["licence"],
        "languages": prepare.get("languages"),
        "documents": prepare["documents"],
        "UTF-8 bytes": prepare["bytes"],
        "duplicates left out": f"{dropped['duplicates_within']:,} in a split, {dropped['duplicates_across']:,} across",
        "empty ones left out": dropped["empty"],
        "sha256 of the files": prepare["sha256"][:16] + "…",
    }
    vocabulary = {
        "token ids": tokenizer["vocab_size"],
        "learnt from documents": tokenizer["documents"],
        "learnt from characters": tokenizer["characters"],
        "longest token, bytes": tokenizer["longest_token_bytes"],
        "bytes per token, validation": pack["val"]["bytes_per_token"],
        "context, tokens": pack["train"].get("sequence_len"),
    }
    panels = markup.pairs("Corpus", corpus) + markup.pairs(
        "Vocabulary", {name: value for name, value in vocabulary.items() if value is not None}
    )
    return f'<div class="two">{panels}</div>{_splits(facts)}'


def _splits(facts: Facts) -> str:
    prepare, pack = facts.metrics["prepare"], facts.metrics["pack"]
    rows = [
        [
            escape(split),
            f"{prepare['splits'][split]['documents']:,}",
            f"{prepare['splits'][split]['bytes']:,}",
            f"{pack[split]['tokens']:,}",
            f"{pack[split]['rows']:,}",
            f"{100 * pack[split]['utilisation']:.2f} %",
            f"{pack[split]['lost_tokens']:,}",
        ]
        for split in SPLITS
    ]
    heads = ("Split", "Documents", "Bytes", "Tokens", "Rows", "Filled", "Tokens lost")
    return markup.plain_table(heads, rows, caption="The splits", numbers=True)
