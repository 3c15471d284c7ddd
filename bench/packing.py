"""MB of text per second of one core, from parquet shards to packed rows, beside plain encoding of the same text.

python bench/packing.py [--corpus wiki-leads-en wiki-leads-fr wiki-leads-es] [--sequence-len 2048]
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tiktoken

import corpora
import results
from ratchet.data.documents import ShardWriter, read_documents
from ratchet.data.packing import pack_split
from ratchet.data.row_plan import Gaps, plan_rows
from ratchet.data.tokenizer import Tokenizer
from ratchet.data.tokenizer_training import train

CORPORA = ["wiki-leads-en", "wiki-leads-fr", "wiki-leads-es"]
# GPT-4's pattern as it is published, but for numbers of one or two digits: what plain tiktoken is measured with.
PUBLISHED_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)


def cpu_seconds(body: Callable[[], object]) -> float:
    """CPU seconds of `body`, with those of the processes that it starts and ends."""

    def spent() -> float:
        usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(usage.ru_utime + usage.ru_stime for usage in usages)

    begin = spent()
    body()
    return spent() - begin


def best(body: Callable[[], object], times: int = 3) -> float:
    return min(cpu_seconds(body) for _ in range(times))


def encoding_rates(texts: list[str], tokenizer: Tokenizer, megabytes: float) -> dict[str, float]:
    """MB per CPU second of encoding alone: plain tiktoken with the published pattern, and ours."""
    ranks = {piece: rank for rank, piece in enumerate(tokenizer.merges)}
    plain = tiktoken.Encoding("plain", pat_str=PUBLISHED_PATTERN, mergeable_ranks=ranks, special_tokens={})
    theirs = best(lambda: [plain.encode_ordinary(text) for text in texts])
    ours = best(lambda: [tokenizer.encode_array(text) for text in texts])
    return {
        "tiktoken_encode_mb_per_cpu_s": round(megabytes / theirs, 2),
        "our_encode_mb_per_cpu_s": round(megabytes / ours, 2),
        "encode_ratio": round(theirs / ours, 2),
    }


def planning_costs(tokenizer: Tokenizer, texts: list[str], sequence_len: int) -> dict[str, float]:
    """Microseconds per document of choosing rows, for the corpus and for 16 times as many documents."""
    sizes = np.array([1 + len(ids) for ids in tokenizer.encode_documents(texts)], dtype=np.uint32)
    costs = {}
    for times in (1, 16):
        many = np.tile(sizes, times)
        spent = best(lambda many=many: plan_rows(many, sequence_len + 1, Gaps.FILL))
        costs[f"plan_us_per_document_{times}x"] = round(1e6 * spent / len(many), 2)
    return costs


def end_to_end(shards: Path, tokenizer_folder: Path, scratch: Path, sequence_len: int, workers: int) -> dict[str, Any]:
    """CPU and wall seconds from shards to rows."""
    (folder := scratch / f"packed-{workers}").mkdir(exist_ok=True)
    begin = time.perf_counter()
    spent = cpu_seconds(
        lambda: pack_split(
            read_documents(shards),
            tokenizer_folder,
            folder,
            sequence_len=sequence_len,
            gaps=Gaps.FILL,
            where=shards,
            workers=workers,
        )
    )
    return {"cpu_s": spent, "wall_s": time.perf_counter() - begin}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # pyright: ignore[reportOptionalMemberAccess]
    parser.add_argument("--corpus", nargs="+", default=CORPORA, help="package corpora, or folders of parquet shards")
    parser.add_argument("--sequence-len", type=int, default=2048)
    arguments = parser.parse_args()
    texts = [text for corpus in arguments.corpus for text in corpora.texts_of(corpus)]
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    limits = {"max_characters": 10**9, "max_document_characters": 10**4}
    tokenizer, _ = train(texts, vocab_size=8192, where="corpus", **limits)
    workers = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        (scratch / "tokenizer").mkdir()
        tokenizer.save(scratch / "tokenizer")
        (scratch / "shards").mkdir()
        with ShardWriter(scratch / "shards") as writer:
            for text in texts:
                writer.add(text)
        places = (scratch / "shards", scratch / "tokenizer", scratch, arguments.sequence_len)
        alone = min((end_to_end(*places, 1) for _ in range(3)), key=lambda run: run["cpu_s"])
        together = min((end_to_end(*places, workers) for _ in range(2)), key=lambda run: run["wall_s"])
    figures = {
        "corpus": arguments.corpus,
        "documents": len(texts),
        "megabytes": round(megabytes, 2),
        "sequence_len": arguments.sequence_len,
        "mb_per_cpu_s_one_process": round(megabytes / alone["cpu_s"], 2),
        "mb_per_cpu_s_all_processes": round(megabytes / together["cpu_s"], 2),
        "mb_per_wall_s_all_processes": round(megabytes / together["wall_s"], 2),
        "processes": workers,
        **(rates := encoding_rates(texts, tokenizer, megabytes)),
        "end_to_end_over_tiktoken_encode": round(megabytes / alone["cpu_s"] / rates["tiktoken_encode_mb_per_cpu_s"], 2),
        **planning_costs(tokenizer, texts, arguments.sequence_len),
    }
    results.keep("packing", figures)


if __name__ == "__main__":
    main()
