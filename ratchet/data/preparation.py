"""A source's documents, split and written: three folders of shards and the manifest, all of them or none.

Refuses to know where the text came from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ratchet.core import atomic
from ratchet.core.errors import InputError
from ratchet.data.documents import ShardWriter
from ratchet.data.sources.protocol import Corpus, Source
from ratchet.data.splitting import SPLITS, SplitName, SplitRule, Splitter

MANIFEST_FORMAT = 1
MAX_FILES_LISTED = 1000


def prepare(
    kind: str,
    source: Source,
    rule: SplitRule,
    *,
    shard_documents: int,
    folders: Mapping[SplitName, Path],
    manifest: Path,
) -> dict[str, Any]:
    """Write `folders` (one per split) and `manifest`; return the manifest. `kind`: the value of prepare.source.

    Everything goes to temp folders that are renamed together at the end, the manifest last. Raises InputError when a
    split would be empty or the source is unfit, OSError when the disk is full; then nothing is left or changed.
    """
    corpus = source.open()
    splitter = Splitter(rule)
    with ExitStack() as outputs:
        manifest_temp = outputs.enter_context(atomic.output_file(manifest))
        temps: dict[SplitName, Path] = {
            name: outputs.enter_context(atomic.output_folder(folders[name])) for name in SPLITS
        }
        shards = _write_splits(corpus, splitter, temps, shard_documents)
        check_no_split_empty(corpus, splitter)
        value = describe(kind, corpus, splitter, shards)
        manifest_temp.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return value


def _write_splits(
    corpus: Corpus, splitter: Splitter, folders: Mapping[SplitName, Path], shard_documents: int
) -> dict[SplitName, int]:
    """Stream every document to the writer of its split; return the number of shards of each."""
    writers: dict[SplitName, ShardWriter] = {}
    with ExitStack() as open_writers:
        writers |= {
            name: open_writers.enter_context(ShardWriter(folder, shard_documents=shard_documents))
            for name, folder in folders.items()
        }
        for document in corpus.documents():
            placed = splitter.place(document)
            if placed is not None:
                split, text = placed
                writers[split].add(text)
    return {name: writer.shards for name, writer in writers.items()}


def check_no_split_empty(corpus: Corpus, splitter: Splitter) -> None:
    """Raise InputError when the corpus has no text at all, or too few documents for each split to get one."""
    counts = {name: count.documents for name, count in splitter.counts.items()}
    kept, dropped = sum(counts.values()), splitter.dropped
    if kept == 0:
        what = f"corpus {corpus.name} holds no document with text (files {len(corpus.files)}, empty {dropped.empty})"
        raise InputError("prepare", what, "give it documents with text")
    empty = [name for name in SPLITS if counts[name] == 0]
    if empty:
        held = ", ".join(f"{name} {count}" for name, count in counts.items())
        what = f"split {empty[0]} is empty: {kept} distinct document(s) fell {held}"
        raise InputError("prepare", what, "add documents, raise the share of that split, or change prepare.split_seed")


def describe(kind: str, corpus: Corpus, splitter: Splitter, shards: Mapping[SplitName, int]) -> dict[str, Any]:
    """The manifest: the same on every rerun, with no path, date or machine in it."""
    counts, rule = splitter.counts, splitter.rule
    totals = {
        key: sum(getattr(count, key) for count in counts.values()) for key in ("documents", "bytes", "characters")
    }
    languages: dict[str, int] = {}
    for count in counts.values():
        for tag, number in count.languages.items():
            languages[tag] = languages.get(tag, 0) + number
    return {
        "format": MANIFEST_FORMAT,
        "source": kind,
        "corpus": corpus.name,
        "origin": corpus.origin,
        "licence": corpus.licence,
        "sha256": corpus.sha256,
        **totals,
        "languages": dict(sorted(languages.items())),
        "splits": {
            name: {
                **asdict(counts[name]),
                "languages": dict(sorted(counts[name].languages.items())),
                "shards": shards[name],
            }
            for name in SPLITS
        },
        "dropped": asdict(splitter.dropped),
        "split_rule": asdict(rule),
        "corpus_bytes": sum(file.size for file in corpus.files),
        "corpus_files": len(corpus.files),
        "files": [f"{file.sha256} {file.size} {file.name}" for file in corpus.files[:MAX_FILES_LISTED]],
    }
