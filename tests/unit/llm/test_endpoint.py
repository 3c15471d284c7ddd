"""A model as params describe it, end to end over HTTP: retries, budget, record, and a key that is nowhere."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import misbehaving_llm as bad
from misbehaving_llm import MisbehavingLlm
from ratchet.core.errors import InputError
from ratchet.llm.client import BudgetSpent, CallError, Message, Role
from ratchet.llm.endpoint import Endpoint, open_client
from ratchet.llm.metered import CallBudget
from ratchet.llm.recorded import Mode
from ratchet.settings import settings

KEY = "sk-planted-0123456789"


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RATCHET_LLM_KEY", KEY)
    monkeypatch.setenv("RATCHET_LLM_BACKOFF_S", "0.01")
    monkeypatch.setenv("RATCHET_LLM_ATTEMPTS", "3")
    settings.cache_clear()
    yield
    settings.cache_clear()


def endpoint(url: str | None, **more: Any) -> Endpoint:
    return Endpoint(base_url=url, model="m", max_tokens=40, **more)


def hello(endpoint: Endpoint, **more: Any) -> Any:
    return endpoint.request(Message(Role.USER, "hello"), **more)


@pytest.mark.parametrize(
    "act",
    [bad.OUTAGE, bad.SLOW_DOWN, bad.TRUNCATED, bad.EMPTY, bad.REFUSAL, bad.DROPS],
    ids=lambda act: str(act.status),
)
def test_client_gets_over_each_failure_and_records_the_answer(tmp_path: Path, act: bad.Act) -> None:
    with MisbehavingLlm([act, act]) as server:
        given = endpoint(server.url)
        reply = open_client(given, tmp_path / "llm.jsonl").complete(hello(given))
        assert (reply.text, len(server.asked)) == ("fine", 3)
    replay = open_client(endpoint(None), tmp_path / "llm.jsonl", Mode.REPLAY)
    assert replay.complete(hello(given)) == reply


def test_client_of_an_endpoint_that_stays_down_stops_with_the_cause(tmp_path: Path) -> None:
    with MisbehavingLlm([bad.OUTAGE] * 9) as server:
        given = endpoint(server.url)
        with pytest.raises(CallError, match=r"status 503: .*\(attempt 3 of 3\)") as caught:
            open_client(given, tmp_path / "llm.jsonl").complete(hello(given))
        assert (caught.value.exit_code, len(server.asked)) == (3, 3)
    assert not (tmp_path / "llm.jsonl").exists()


def test_client_budget_counts_over_restarts_and_retries(tmp_path: Path) -> None:
    with MisbehavingLlm([bad.EMPTY]) as server:
        given = endpoint(server.url, budget=CallBudget(calls=3))
        for sample in range(2):
            open_client(given, tmp_path / "llm.jsonl").complete(hello(given, sample=sample))
        client = open_client(given, tmp_path / "llm.jsonl")
        with pytest.raises(BudgetSpent, match="3 of 3 calls are used"):
            client.complete(hello(given, sample=2))
        assert client.complete(hello(given, sample=1)).text == "fine"  # the record stays free
        assert len(server.asked) == 3


def test_client_budget_that_ends_between_two_attempts_counts_the_first_in_the_next_process(tmp_path: Path) -> None:
    with MisbehavingLlm([bad.EMPTY]) as server:
        given = endpoint(server.url, budget=CallBudget(calls=1))
        for _ in range(2):
            with pytest.raises(BudgetSpent, match="1 of 1 calls are used"):
                open_client(given, tmp_path / "llm.jsonl").complete(hello(given))
        assert len(server.asked) == 1


def test_client_key_reaches_the_endpoint_and_no_record_log_or_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    plan = [bad.Act(text=f"the key is {KEY}"), *[bad.error(500, f"bad {KEY}")] * 3, bad.error(401, f"bad {KEY}")]
    with MisbehavingLlm(plan) as server:
        given = endpoint(server.url)
        client = open_client(given, tmp_path / "llm.jsonl")
        client.complete(hello(given))
        for sample, error in ((1, CallError), (2, InputError)):
            with pytest.raises(error) as caught:
                client.complete(hello(given, sample=sample))
            assert KEY not in str(caught.value)
        assert set(server.keys) == {f"Bearer {KEY}"}
    client.publish(tmp_path / "published.jsonl")
    said = capfd.readouterr()
    written = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert "the key is [key]" in written
    assert KEY not in written + caplog.text + said.out + said.err + given.model_dump_json() + repr(client.__dict__)


def test_client_takes_the_key_that_params_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with MisbehavingLlm() as server:
        given = endpoint(server.url, key_variable="MY_OTHER_KEY")
        with pytest.raises(InputError, match="MY_OTHER_KEY is not set"):
            open_client(given, tmp_path / "llm.jsonl").complete(hello(given))
        (tmp_path / ".env").write_text("MY_OTHER_KEY=other\n")
        open_client(given, tmp_path / "llm.jsonl").complete(hello(given))
        assert server.keys == ["Bearer other"]


def test_client_without_a_model_or_an_endpoint_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no model is named"):
        Endpoint().request(prompt="x")
    given = endpoint(None)
    with pytest.raises(InputError, match="set RATCHET_LLM_BASE_URL"):
        open_client(given, tmp_path / "llm.jsonl").complete(hello(given))
