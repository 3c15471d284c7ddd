"""A function over items by several threads, its results in the order of the items, never of the threads.

Refuses to know what the function asks whom.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")


def in_order(function: Callable[[A], B], items: Sequence[A], workers: int) -> list[B]:
    """`[function(item) for item in items]` by up to `workers` threads.

    The first error ends it: what has not begun is not begun, what runs is waited for (a reply already paid for is
    kept), and the error of the earliest item that has one is raised.
    """
    if workers == 1 or len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(workers, len(items)), thread_name_prefix="skill") as pool:
        futures = [pool.submit(function, item) for item in items]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    failed = next((f for f in futures if not f.cancelled() and f.exception() is not None), None)
    return [future.result() for future in ([failed] if failed else futures)]
