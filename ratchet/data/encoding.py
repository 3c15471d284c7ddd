"""Every document encoded once, in parallel processes, in the documents' own order.

Refuses to know what a split is and how rows are made. The result is the same for every number of processes.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ratchet.core.errors import InfrastructureError
from ratchet.data.tokenizer import Tokenizer

BATCH_CHARACTERS = 1 << 20
# Starting processes costs about a second, which is ten batches encoded in this one.
BATCHES_WORTH_PROCESSES = 16


class EncodedBatch(NamedTuple):
    """Consecutive documents: `ids` holds BOS and the ids of each one after the other, `sizes` how many each has."""

    ids: npt.NDArray[np.unsignedinteger]
    sizes: npt.NDArray[np.uint32]
    bytes: int


def id_type(vocab_size: int) -> np.dtype[np.unsignedinteger]:
    """The narrowest type ids are stored in: uint16 while every id fits."""
    return np.dtype(np.uint16) if vocab_size <= 1 << 16 else np.dtype(np.uint32)


def available_cpus() -> int:
    """CPUs this process may run on (its cpuset), which containers and schedulers make fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def encode_split(texts: Iterable[str], tokenizer: Tokenizer, *, workers: int | None = None) -> Iterator[EncodedBatch]:
    """The documents of `texts` as batches of ids, in order; holds a few batches of text and no more.

    `workers`: processes, by default one per CPU this process may use. A small corpus is encoded in this process.
    """
    workers = workers or available_cpus()
    batches = _batches(texts)
    head = list(islice(batches, BATCHES_WORTH_PROCESSES))
    if workers == 1 or len(head) < BATCHES_WORTH_PROCESSES:
        for batch in chain(head, batches):
            yield encode_batch(tokenizer, batch)
    else:
        yield from _encode_in_processes(chain(head, batches), tokenizer, workers)


def encode_batch(tokenizer: Tokenizer, texts: list[str]) -> EncodedBatch:
    """`texts` as one batch, BOS before each."""
    ids = tokenizer.encode_joined(texts)
    starts = np.flatnonzero(ids == tokenizer.bos)  # no text makes a BOS
    sizes = np.diff(starts, append=len(ids)).astype(np.uint32)
    return EncodedBatch(ids.astype(id_type(tokenizer.vocab_size)), sizes, int(tokenizer.token_bytes[ids].sum()))


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    characters = 0
    for text in texts:
        batch.append(text)
        characters += len(text)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _encode_in_processes(batches: Iterable[list[str]], tokenizer: Tokenizer, workers: int) -> Iterator[EncodedBatch]:
    context = multiprocessing.get_context("spawn")  # a fork would copy pyarrow's threads in mid-flight
    pending: deque[Future[EncodedBatch]] = deque()
    with ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(tokenizer.merges,)) as pool:
        try:
            for batch in batches:
                pending.append(pool.submit(_encode_in_worker, batch))
                if len(pending) > 2 * workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool:
            what = f"one of {workers} encoding processes was killed, most likely for want of memory"
            raise InfrastructureError(
                "encode", what, "free memory, or allow fewer CPUs (taskset), and run again"
            ) from None
        finally:
            for future in pending:
                future.cancel()


_worker_tokenizer: Tokenizer


def _start_worker(merges: tuple[bytes, ...]) -> None:
    """Build the tokenizer once, and end with the parent: a pool's workers outlive a parent that is killed."""
    global _worker_tokenizer
    _worker_tokenizer = Tokenizer(merges)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _encode_in_worker(texts: list[str]) -> EncodedBatch:
    return encode_batch(_worker_tokenizer, texts)
