"""Agents at once instead of in turn: one thread each, the cores shared out.

Writing a completion is many products of a few rows with large matrices, which a second thread helps less than a second
agent does. How cores are shared out is a function of their number and the agents', so bits repeat.
Refuses to know what is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Result = TypeVar("Result")


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
