"""Agents at once instead of in turn: one thread each, the cores shared out.

Writing a completion is many products of a few rows with large matrices, which a second thread helps less than a second
agent does. How cores are shared out is a function of their number and the agents', so bits repeat.
Refuses to know what is done.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Result = TypeVar("Result")
M_ARENA_MAX = -8  # malloc.h of glibc


def share_memory() -> bool:
    """Let all threads of this process take memory from one place, to be called before there are threads; True where it
    took effect (glibc).

    By default each thread frees into an arena of its own. Kept there (`tune_allocator`), what completions took is of no
    use to the update after them: 0.8 GB of 5.6 for two agents of 135 M weights on two threads (docs/LOG.md).
    """
    return platform.libc_ver()[0] == "glibc" and ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1) == 1


def at_once(work: Sequence[Callable[[], Result]]) -> list[Result]:
    """The results of all `work`, in order, on this process' torch threads. Raises what the first of them raised."""
    threads = torch.get_num_threads()
    workers = min(len(work), threads)
    if workers < 2:
        return [each() for each in work]
    share = max(1, threads // workers)
    try:
        with ThreadPoolExecutor(workers, "agent", torch.set_num_threads, (share,)) as pool:
            return list(pool.map(lambda each: each(), work))
    finally:
        torch.set_num_threads(threads)
