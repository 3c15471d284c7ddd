"""When a run elsewhere counts as lost, and what a cut network does to who waits for it."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from ratchet.core.errors import InfrastructureError
from ratchet.loops.research import pool
from ratchet.loops.research.pool import BEATS, Call

LOST_S = 10.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A time that the test sets."""
    now = SimpleNamespace(at=100.0)
    monkeypatch.setattr(pool, "monotonic", lambda: now.at)
    monkeypatch.setattr(pool, "POLL_S", 0.0)
    return now


def call(clock: SimpleNamespace) -> Call:
    return Call("experiment/experiment", threading.Event(), LOST_S, _heard=clock.at)


class Server:
    """Tells of one run's progress."""

    def __init__(self) -> None:
        self.updated = 0

    async def read_artifacts(self, **_: Any) -> list[SimpleNamespace]:
        return [SimpleNamespace(id="a", updated=self.updated)]


def run(*, running: bool) -> SimpleNamespace:
    return SimpleNamespace(id="00000000-0000-0000-0000-000000000001", state=SimpleNamespace(is_running=lambda: running))


def test_run_is_lost_when_its_progress_stays_as_it_is(clock: SimpleNamespace) -> None:
    here, server = call(clock), Server()
    for _ in range(3 * BEATS):
        clock.at += LOST_S / BEATS + 0.1
        server.updated += 1
        assert not asyncio.run(here._is_lost(server, run(running=True)))
    clock.at += LOST_S - 1
    assert not asyncio.run(here._is_lost(server, run(running=True)))
    clock.at += 2
    assert asyncio.run(here._is_lost(server, run(running=True)))


def test_run_that_waits_in_the_queue_is_not_lost(clock: SimpleNamespace) -> None:
    here = call(clock)
    clock.at += 100 * LOST_S
    assert not asyncio.run(here._is_lost(Server(), run(running=False)))


def test_cut_network_is_waited_for_and_loses_nobody(clock: SimpleNamespace) -> None:
    here, tries = call(clock), []

    async def request() -> str:
        tries.append(clock.at)
        clock.at += LOST_S / 4
        if len(tries) < 3:
            raise httpx.ConnectError("no route")
        return "answer"

    assert asyncio.run(here._asked(request)) == "answer"
    assert len(tries) == 3
    assert not asyncio.run(here._is_lost(Server(), run(running=True)))


def test_server_that_does_not_come_back_is_told(clock: SimpleNamespace) -> None:
    async def request() -> str:
        clock.at += LOST_S / 4
        raise httpx.ConnectError("no route")

    with pytest.raises(InfrastructureError, match=r"no server answers \(ConnectError\)"):
        asyncio.run(call(clock)._asked(request))
