"""Tokens per CPU second: an online best-fit loader against ours, on the same corpus in one process.

    python bench/loader.py [--corpus wiki-leads-en] [--sequence-len 256 2048] [--step-seconds 1.0]

The online loader is the known design written out: documents encoded as they come, a buffer of 1,000 of them scanned
for the longest that fits, and the shortest cropped when none does, its tail dropped. CPU seconds are those of the
whole process, threads included. Ours has packed before; what that cost once is in the figures.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tiktoken
import torch

import corpora
import results
from ratchet.data.loader import Loader
from ratchet.data.packing import PackedSplit, pack_split
from ratchet.data.row_plan import Gaps
from ratchet.data.tokenizer import PATTERN, SPECIALS, Tokenizer
from ratchet.data.tokenizer_training import train

BUFFER_DOCUMENTS = 1000
TOKENS_PER_BATCH = 4096


class OnlineLoader:
    """Endless batches int64 [B, T + 1] from texts encoded on the fly; counts the ids it placed and those it dropped."""

    def __init__(self, texts: list[str], tokenizer: Tokenizer, batch_rows: int, sequence_len: int) -> None:
        self._texts: Iterator[str] = itertools.cycle(texts)
        self._encoding = tiktoken.Encoding(
            "online",
            pat_str=PATTERN,
            mergeable_ranks={piece: rank for rank, piece in enumerate(tokenizer.merges)},
            special_tokens={name: tokenizer.bos + place for place, name in enumerate(SPECIALS)},
        )
        self._bos = tokenizer.bos
        self._shape = (batch_rows, sequence_len + 1)
        self._buffer: list[list[int]] = []
        self.placed = self.dropped = 0

    def next(self) -> torch.Tensor:
        batch = torch.empty(self._shape, dtype=torch.int64)
        for row in batch:
            self._fill(row)
        return batch

    def _fill(self, row: torch.Tensor) -> None:
        position, end = 0, len(row)
        while position < end:
            while len(self._buffer) < BUFFER_DOCUMENTS:
                self._buffer.append([self._bos, *self._encoding.encode_ordinary(next(self._texts))])
            document = self._buffer.pop(self._choose(end - position))
            ids = document[: end - position]
            row[position : position + len(ids)] = torch.tensor(ids)
            position += len(ids)
            self.placed += len(ids)
            self.dropped += len(document) - len(ids)

    def _choose(self, space: int) -> int:
        """The place in the buffer of the longest document that fits, else of the shortest."""
        best, best_size = -1, 0
        for place, document in enumerate(self._buffer):
            size = len(document)
            if best_size < size <= space:
                best, best_size = place, size
        return best if best >= 0 else min(range(len(self._buffer)), key=lambda place: len(self._buffer[place]))


def cpu_seconds_per_batch(loader: OnlineLoader | Loader, batches: int) -> float:
    begin = time.process_time()
    for _ in range(batches):
        loader.next()
    return (time.process_time() - begin) / batches


def compare(
    texts: list[str], tokenizer: Tokenizer, tokenizer_folder: Path, packed: Path, sequence_len: int, step_seconds: float
) -> dict[str, Any]:
    """Both loaders at one row length, `TOKENS_PER_BATCH` tokens a batch, measured in turns."""
    begin = time.process_time()
    manifest = pack_split(
        texts, tokenizer_folder, packed, sequence_len=sequence_len, gaps=Gaps.FILL, where="corpus", workers=1
    )
    packing = time.process_time() - begin
    split, batch_rows = PackedSplit.load(packed), TOKENS_PER_BATCH // sequence_len
    online = OnlineLoader(texts, tokenizer, batch_rows, sequence_len)
    with Loader(split, batch_rows=batch_rows, seed=0) as ours:
        cpu_seconds_per_batch(online, 20)
        cpu_seconds_per_batch(ours, 200)
        turns = [(cpu_seconds_per_batch(online, 60), cpu_seconds_per_batch(ours, 600)) for _ in range(5)]
    online_cost, our_cost = (sorted(costs)[2] for costs in zip(*turns, strict=True))
    return {
        "sequence_len": sequence_len,
        "online_tokens_per_cpu_s": round(TOKENS_PER_BATCH / online_cost),
        "ours_tokens_per_cpu_s": round(TOKENS_PER_BATCH / our_cost),
        "ratio": round(online_cost / our_cost, 1),
        "ratio_of_each_turn": [round(theirs / mine, 1) for theirs, mine in turns],
        "online_lost_share": round(online.dropped / (online.placed + online.dropped), 5),
        "ours_lost_share": round(manifest["lost_share"], 7),
        "ours_continued_share": round(manifest["continued_share"], 5),
        "packing_once_cpu_s": round(packing, 2),
        "ours_share_of_a_step_percent": round(100 * our_cost / step_seconds, 4),
        "step_seconds_per_4096_tokens": step_seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # pyright: ignore[reportOptionalMemberAccess]
    parser.add_argument("--corpus", default="wiki-leads-en", help="a package corpus, or a folder of parquet shards")
    parser.add_argument("--sequence-len", type=int, nargs="+", default=[256, 2048])
    parser.add_argument("--step-seconds", type=float, default=0.8, help="of a CPU training step of 4,096 tokens")
    arguments = parser.parse_args()
    texts = corpora.texts_of(arguments.corpus)
    limits = {"max_characters": 10**9, "max_document_characters": 10**4}
    tokenizer, _ = train(texts, vocab_size=8192, where=arguments.corpus, **limits)
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer.save(Path(scratch))
        runs = []
        for sequence_len in arguments.sequence_len:
            (packed := Path(scratch) / str(sequence_len)).mkdir()
            runs.append(compare(texts, tokenizer, Path(scratch), packed, sequence_len, arguments.step_seconds))
    results.keep("loader", {"corpus": arguments.corpus, "documents": len(texts), "runs": runs})


if __name__ == "__main__":
    main()
