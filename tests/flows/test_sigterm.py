"""SIGTERM cancels a flow wherever the event loop is, under a handler that raises, as Prefect's does."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from flows.sigterm import cancels_this_task


def raises(*_: object) -> None:
    raise RuntimeError("what Prefect's handler does")


@pytest.fixture(autouse=True)
def raising_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, raises)
    yield
    signal.signal(signal.SIGTERM, before)


def test_sigterm_in_a_callback_cancels_the_task_and_the_handler_of_before_comes_back() -> None:
    async def body() -> None:
        with cancels_this_task():
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
            await asyncio.sleep(20)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(body())
    assert signal.getsignal(signal.SIGTERM) is raises


def test_sigterm_of_a_flow_in_another_thread_is_left_to_the_main_one() -> None:
    ended: list[bool] = []

    async def body() -> None:
        with cancels_this_task():
            ended.append(signal.getsignal(signal.SIGTERM) is raises)

    thread = threading.Thread(target=lambda: asyncio.run(body()))
    thread.start()
    thread.join()
    assert ended == [True]
