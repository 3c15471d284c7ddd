"""How often an experiment's deployment is called, under which keys, and how each call may end; no server is asked."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.client.schemas.objects import State, StateType
from prefect.exceptions import ObjectNotFound

from ratchet.core.errors import InfrastructureError
from ratchet.loops.research import pool
from ratchet.loops.research.exchange import SharedFolder
from ratchet.loops.research.executor import Experiment, Result, StoppedError, Worker, result_file
from ratchet.loops.research.pool import ATTEMPTS, BEATS, Call, through_deployment

NAME, LOST_S = "experiment/experiment", 10.0
DONE = Result(val_bpb=1.5, reason="", isolation="weak")


def job_in(folder: Path) -> Experiment:
    return Experiment(
        key="k", number=4, what="a test", folder=folder, source="", train={}, rows=folder / "rows",
        tokenizer=folder / "tokenizer", split=folder / "val", judged_rows=None, batch_rows=1, judge_limit_s=1.0,
        seconds=1.0, memory_mb=1, processes=1, session="s",
    )  # fmt: skip


class Carrier:
    """Has a result once `after` runs have been called."""

    def __init__(self, after: int) -> None:
        self.after, self.calls = after, list[tuple[dict[str, Any], str]]()

    def parameters(self, job: Experiment) -> dict[str, Any]:
        return {"job": job.number}

    def received(self, job: Experiment) -> Result | None:
        return DONE if len(self.calls) >= self.after else None


def call_deployment(
    carrier: Carrier, folder: Path, monkeypatch: pytest.MonkeyPatch, *, why: str = "", stop: bool = False
) -> Result:
    """What the laboratory gives when each run ends with `why`; with `stop` the session ends meanwhile."""
    worker = Worker()

    async def run(self: Call, parameters: dict[str, Any], key: str) -> str:
        assert (self.name, self.stopping, self.lost_s) == (NAME, worker.stopping, LOST_S)
        carrier.calls.append((parameters, key))
        if stop:
            worker.stopping.set()
        return why

    monkeypatch.setattr(Call, "run", run)
    return through_deployment(NAME, carrier, LOST_S)(job_in(folder), worker)


def test_result_that_is_there_is_taken_and_nothing_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    carrier = Carrier(after=0)
    assert call_deployment(carrier, tmp_path, monkeypatch) == DONE
    assert carrier.calls == []


def test_lost_run_is_called_again_under_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server gives the same run again for the same key, a lost one too."""
    carrier = Carrier(after=3)
    assert call_deployment(carrier, tmp_path, monkeypatch, why="gave no sign of life for 10 s") == DONE
    assert [parameters for parameters, _ in carrier.calls] == [{"job": 4, "beat_s": LOST_S / BEATS}] * 3
    assert len({key for _, key in carrier.calls}) == 3


def test_another_session_calls_under_other_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = Carrier(after=1), Carrier(after=1)
    for carrier in (one, other):
        call_deployment(carrier, tmp_path, monkeypatch)
    assert one.calls[0][1] != other.calls[0][1]


@pytest.mark.parametrize(("why", "said"), [("gave no sign of life for 10 s",) * 2, ("", "left none")])
def test_experiment_without_a_result_is_given_up_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str, said: str
) -> None:
    carrier = Carrier(after=99)
    with pytest.raises(InfrastructureError) as raised:
        call_deployment(carrier, tmp_path, monkeypatch, why=why)
    assert len(carrier.calls) == ATTEMPTS
    told = f"deployment {NAME}: experiment 4 gave no result in 3 runs; the last {said}; see its log on the server"
    assert str(raised.value).startswith(told)


def test_session_that_stops_meanwhile_calls_no_second_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    carrier = Carrier(after=99)
    with pytest.raises(StoppedError):
        call_deployment(carrier, tmp_path, monkeypatch, why="ended Cancelled: None", stop=True)
    assert len(carrier.calls) == 1


def test_shared_folder_tells_the_whole_job_and_finds_its_result_where_it_is(tmp_path: Path) -> None:
    job, carrier = job_in(tmp_path), SharedFolder()
    told = json.loads(json.dumps(carrier.parameters(job)))
    assert Experiment.of(told["job"]) == job
    assert carrier.received(job) is None
    result_file(job).write_text(json.dumps(DONE.as_json()))
    assert carrier.received(job) == DONE


class Server:
    """Has one run, in the states `kinds` in turn; keeps what the run is marked as."""

    def __init__(self, *kinds: StateType) -> None:
        self.kinds, self.marks = [*kinds], list[Any]()

    def run(self) -> SimpleNamespace:
        kind = self.kinds.pop(0) if len(self.kinds) > 1 else self.kinds[0]
        state = State(type=kind, name=kind.value.title(), message="so it was")
        return SimpleNamespace(id="00000000-0000-0000-0000-000000000001", state=state)

    async def read_flow_run(self, _: str) -> SimpleNamespace:
        return self.run()

    async def read_artifacts(self, **_: Any) -> list[Any]:
        return []

    async def set_flow_run_state(self, _: str, state: Any, **__: Any) -> None:
        self.marks.append(state.type)


def run_on(server: Server, monkeypatch: pytest.MonkeyPatch, *, stopping: bool = False, fails: str = "") -> str:
    """What Call.run says of the run on `server`, to which nobody can deploy when it `fails`."""

    async def run_deployment(name: str, **told: Any) -> SimpleNamespace:
        if fails:
            raise ObjectNotFound(Exception("404"), fails)
        assert name == NAME
        assert told == {"parameters": {"job": 4}, "timeout": 0, "as_subflow": False, "idempotency_key": "key"}
        return server.run()

    @asynccontextmanager
    async def client():
        yield server

    monkeypatch.setattr("prefect.deployments.run_deployment", run_deployment)
    monkeypatch.setattr("prefect.client.orchestration.get_client", client)
    monkeypatch.setattr(pool, "POLL_S", 0.01)
    call = Call(NAME, threading.Event(), LOST_S)
    if stopping:
        call.stopping.set()
    return asyncio.run(call.run({"job": 4}, "key"))


def test_run_that_completes_or_fails_says_so_and_is_not_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    done, failed = Server(StateType.RUNNING, StateType.COMPLETED), Server(StateType.RUNNING, StateType.FAILED)
    assert run_on(done, monkeypatch) == ""
    assert run_on(failed, monkeypatch) == "ended Failed: so it was"
    assert done.marks == failed.marks == []


def test_session_that_stops_asks_its_run_to_end_once_and_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(StateType.RUNNING, StateType.CANCELLING, StateType.CANCELLING, StateType.CANCELLED)
    assert run_on(server, monkeypatch, stopping=True) == "ended Cancelled: so it was"
    assert server.marks == [StateType.CANCELLING]


def test_deployment_that_cannot_be_called_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InfrastructureError) as raised:
        run_on(Server(StateType.COMPLETED), monkeypatch, fails="nobody serves it\nTraceback: a second line")
    said = f"deployment {NAME}: nobody serves it; serve it, or set RATCHET_EXECUTOR=threads"
    assert str(raised.value) == said
