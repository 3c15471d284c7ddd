"""SIGTERM as a cancellation of the running task.

Prefect's own handler raises wherever the event loop happens to be. Inside one of asyncio's callbacks that exception is
logged and lost, and the flow goes on; between two it ends in a traceback.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def cancels_this_task() -> Iterator[None]:
    """While the block runs, SIGTERM cancels the task that entered it, as Ctrl-C does; no other thread can have this."""
    task = asyncio.current_task()
    if task is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    loop, before = asyncio.get_running_loop(), signal.getsignal(signal.SIGTERM)
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, before)
