"""Whether an error means that memory did not suffice. Refuses to know what was tried."""

from __future__ import annotations

import torch

SIGNS = ("out of memory", "can't allocate memory", "not enough memory")


def is_out_of_memory(error: BaseException) -> bool:
    """True for CUDA's error, Python's, and the plain RuntimeError with which torch's CPU allocator gives up."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in SIGNS)
