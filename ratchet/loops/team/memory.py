"""Whether an error means that memory did not suffice, and going on with less at once. Refuses to know what is done."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")
SIGNS = ("out of memory", "can't allocate memory", "not enough memory")
LEAST_MICRO_BATCH = 32
"""Tokens. Below this, memory does not suffice for one sequence and smaller batches are no help."""


def is_out_of_memory(error: BaseException) -> bool:
    """True for CUDA's error, Python's, and the plain RuntimeError with which torch's CPU allocator gives up."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in SIGNS)


def within_memory(
    work: Callable[[int], Result], tokens: int, what: str, undo: Callable[[], object] = lambda: None
) -> tuple[Result, int]:
    """`work(tokens)`, tried with half the tokens as often as memory does not suffice, and the tokens that it took.

    `undo` takes back what a failed try has left; `what` is named to the user. Raises what the smallest try raised.
    """
    while True:
        try:
            return work(tokens), tokens
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error) or tokens <= LEAST_MICRO_BATCH:
                raise
        undo()
        tokens //= 2
        print(f"team: out of memory in {what}; from now on micro-batches of {tokens} tokens",
              file=sys.stderr, flush=True)  # fmt: skip
