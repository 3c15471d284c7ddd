"""When a run elsewhere counts as lost, and what a cut network does to who waits for it."""

from __future__ import annotations

import asyncio
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from prefect.client.schemas.objects import State, StateType

import flows.experiment
from ratchet.core.errors import InfrastructureError
from ratchet.loops.research import exchange, pool
from ratchet.loops.research.exchange import UnreachedError
from ratchet.loops.research.executor import Result, Worker
from ratchet.loops.research.pool import BEATS, Call, through_deployment

LOST_S = 10.0
RESULT = Result(val_bpb=1.0, reason="", isolation="weak")


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


def run(kind: StateType) -> SimpleNamespace:
    return SimpleNamespace(id="00000000-0000-0000-0000-000000000001", state=State(type=kind))


def test_run_is_lost_when_its_progress_stays_as_it_is(clock: SimpleNamespace) -> None:
    here, server = call(clock), Server()
    for _ in range(3 * BEATS):
        clock.at += LOST_S / BEATS + 0.1
        server.updated += 1
        assert not asyncio.run(here._is_lost(server, run(StateType.RUNNING)))
    clock.at += LOST_S - 1
    assert not asyncio.run(here._is_lost(server, run(StateType.RUNNING)))
    clock.at += 2
    assert asyncio.run(here._is_lost(server, run(StateType.RUNNING)))


def test_run_that_waits_in_the_queue_is_not_lost(clock: SimpleNamespace) -> None:
    here = call(clock)
    clock.at += 100 * LOST_S
    assert not asyncio.run(here._is_lost(Server(), run(StateType.SCHEDULED)))


@pytest.mark.parametrize(
    ("kind", "patience_s"), [(StateType.PENDING, pool.STARTING * LOST_S), (StateType.CANCELLING, LOST_S)]
)
def test_run_whose_machine_dies_while_it_starts_or_stops_is_lost(
    clock: SimpleNamespace, kind: StateType, patience_s: float
) -> None:
    here = call(clock)
    clock.at += patience_s - 1
    assert not asyncio.run(here._is_lost(Server(), run(kind)))
    clock.at += 2
    assert asyncio.run(here._is_lost(Server(), run(kind)))


def test_cut_network_is_waited_for_and_loses_nobody(clock: SimpleNamespace) -> None:
    here, server, tries = call(clock), Server(), []
    assert not asyncio.run(here._is_lost(server, run(StateType.RUNNING)))

    async def request() -> str:
        tries.append(clock.at)
        clock.at += LOST_S / 4
        if len(tries) < 3:
            raise httpx.ConnectError("no route")
        return "answer"

    assert asyncio.run(here._asked(request)) == "answer"
    assert len(tries) == 3
    clock.at += LOST_S / 2  # with the time of the cut more than LOST_S since the last sign
    assert not asyncio.run(here._is_lost(server, run(StateType.RUNNING)))


@pytest.mark.parametrize(("code", "tries"), [(500, 2), (404, 1)])
def test_server_under_load_is_asked_again_and_its_refusal_is_not(clock: SimpleNamespace, code: int, tries: int) -> None:
    asked = []

    async def request() -> str:
        asked.append(code)
        if len(asked) == 2:
            return "answer"
        answer = httpx.Response(code, request=httpx.Request("GET", "http://server"))
        raise httpx.HTTPStatusError("no", request=answer.request, response=answer)

    with pytest.raises(httpx.HTTPStatusError) if code == 404 else nullcontext():
        assert asyncio.run(call(clock)._asked(request)) == "answer"
    assert len(asked) == tries


def test_server_that_does_not_come_back_is_told(clock: SimpleNamespace) -> None:
    async def request() -> str:
        clock.at += LOST_S / 4
        raise httpx.ConnectError("no route")

    with pytest.raises(InfrastructureError, match=r"no server answers \(ConnectError\)"):
        asyncio.run(call(clock)._asked(request))


class CutOff:
    """Does nothing but count, after it could not be reached once."""

    def __init__(self, answer: object = None) -> None:
        self.answer, self.asked = answer, 0

    def received(self, *_: Any) -> Any:
        self.asked += 1
        if self.asked == 1:
            raise UnreachedError("experiments", "the DVC remote fails: no route", "mend it")
        return self.answer


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "AGAIN_S", 0.0)


@pytest.mark.usefixtures("at_once")
def test_session_asks_a_remote_again_that_it_does_not_reach() -> None:
    carrier: Any = CutOff(RESULT)
    job: Any = SimpleNamespace(number=1)
    assert through_deployment("experiment/experiment", carrier, LOST_S)(job, Worker()) == RESULT
    assert carrier.asked == 2


@pytest.mark.usefixtures("at_once")
def test_worker_asks_a_remote_again_that_it_does_not_reach(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    job = SimpleNamespace(number=1, folder=tmp_path)
    arrives, delivers = CutOff(job), CutOff()
    monkeypatch.setattr(flows.experiment, "arrived", arrives.received)
    monkeypatch.setattr(flows.experiment, "deliver", delivers.received)
    monkeypatch.setattr(flows.experiment, "beating", lambda *_: nullcontext([]))
    monkeypatch.setattr(flows.experiment, "laboratory", lambda *_: lambda *_: RESULT)
    monkeypatch.setattr(flows.experiment, "kept", lambda laboratory: laboratory)
    monkeypatch.setattr(flows.experiment.Experiment, "of", lambda told: told)
    flows.experiment.experiment.fn({"number": 1}, {"device": {}}, LOST_S / BEATS)
    assert (arrives.asked, delivers.asked) == (2, 2)
