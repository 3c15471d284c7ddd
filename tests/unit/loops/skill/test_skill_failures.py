"""Agent and optimizer over HTTP from an endpoint that misbehaves: every failure is asked again, then stops the step
with its cause and exit code 3, and never becomes a score.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import misbehaving_llm as bad
import toy_skill
from misbehaving_llm import Act, MisbehavingLlm
from ratchet.core.errors import InfrastructureError
from ratchet.core.rundir import list_runs
from ratchet.llm.client import CallError
from ratchet.loops.skill import session
from ratchet.loops.skill.session import Ending, Request
from ratchet.settings import settings

SMALL: dict[str, Any] = {"tasks": {"val_size": 6, "test_size": 3}, "limit": 6, "batch_size": 6, "num_epochs": 1}
ATTEMPTS = 3
LATE_S = 2.5


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Three attempts, no waiting between them; a machine under load gets its time."""
    for name, value in (("ATTEMPTS", ATTEMPTS), ("BACKOFF_S", "0.001"), ("TIMEOUT_S", "30")):
        monkeypatch.setenv(f"RATCHET_LLM_{name}", str(value))
    settings.cache_clear()
    yield
    settings.cache_clear()


def respond(body: bad.Body) -> str:
    return toy_skill.respond(body["model"], body["messages"])


def request(where: Path, agent: MisbehavingLlm, optimizer: MisbehavingLlm, **over: Any) -> Request:
    roles = {"target": {"base_url": agent.url}, "optimizer": {"base_url": optimizer.url}}
    project = toy_skill.make_project(where)
    return toy_skill.request(project, **toy_skill.merge(toy_skill.merge(SMALL, roles), over))


def train(made: Request, where: Path) -> Ending:
    with session.open_session(made, toy_skill.settings(where)) as opened:
        who = session.players(made.params, opened.path, toy_skill.settings(where))
        return session.train(made, who, opened, say=lambda line: None)


FAILURES = {
    "outage": (bad.OUTAGE, "does not work"),
    "429": (bad.SLOW_DOWN, "slow down"),
    "timeout": (Act(delay_s=LATE_S), "no whole answer in time"),
    "malformed": (bad.TRUNCATED, "not what the protocol says"),
    "empty": (bad.EMPTY, "the answer is empty"),
    "refusal": (bad.REFUSAL, "refused"),
    "filter": (bad.FILTERED, "refused"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_agent_that_fails_for_good_stops_the_step_with_its_cause_and_no_score(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    act, said = FAILURES[name]
    if name == "timeout":
        monkeypatch.setenv("RATCHET_LLM_TIMEOUT_S", "0.3")
    with MisbehavingLlm([act] * 100, respond) as agent, MisbehavingLlm([], respond) as optimizer:
        made = request(tmp_path, agent, optimizer, workers=1)
        with pytest.raises(InfrastructureError, match=said) as error:
            train(made, tmp_path)
    assert error.value.exit_code == 3
    assert f"attempt {ATTEMPTS} of {ATTEMPTS}" in str(error.value)
    assert len(agent.asked) == ATTEMPTS
    run = list_runs(tmp_path / "runs")[0]
    assert (run.seq, run.state) == (0, "stopped")
    assert not (run.path / "ledger.jsonl").exists()


@pytest.mark.parametrize("name", FAILURES)
def test_agent_that_fails_once_is_asked_again_and_the_result_is_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    act, _ = FAILURES[name]
    if name == "timeout":
        monkeypatch.setenv("RATCHET_LLM_TIMEOUT_S", str(LATE_S - 0.5))
    with MisbehavingLlm([], respond) as agent, MisbehavingLlm([], respond) as optimizer:
        good = train(request(tmp_path, agent, optimizer), tmp_path / "good").state
        agent.plan = [act, act]
        marred = train(request(tmp_path, agent, optimizer, workers=1), tmp_path / "marred").state
    assert good.best.text
    assert (marred.best.text, marred.baseline) == (good.best.text, good.baseline)


UNREADABLE = {
    "prose": "I would rather tell you about it.",
    "json that is cut off": '{"edits": [{"op": "append", "content": "x',
    "another object": '{"answer": 42}',
    "a list": "[]",
    "an unknown operation": '{"edits": [{"op": "prepend", "content": "x"}]}',
    "an unknown field": '{"edits": [{"op": "append", "content": "x", "where": "top"}]}',
    "content that is no text": '{"edits": [{"op": "append", "content": 3}]}',
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_optimizer_that_cannot_be_read_stops_the_step_and_nothing_wrong_is_kept(name: str, tmp_path: Path) -> None:
    with MisbehavingLlm([], respond) as agent:
        with MisbehavingLlm([Act(text=UNREADABLE[name])] * 100, respond) as optimizer:
            made = request(tmp_path, agent, optimizer, workers=1)
            with pytest.raises(CallError, match="not what the protocol says") as error:
                train(made, tmp_path)
            assert error.value.exit_code == 3
            assert len(optimizer.asked) == ATTEMPTS
        run = list_runs(tmp_path / "runs")[0]
        assert (run.seq, run.state) == (1, "stopped")
        lines = [json.loads(line) for line in (run.path / "optimizer.jsonl").read_text().splitlines()]
        assert all("reply" not in line for line in lines)
        with MisbehavingLlm([], respond) as optimizer:  # the endpoint is mended: the same run goes on
            before = len(agent.asked)
            ending = train(request(tmp_path, agent, optimizer), tmp_path)
    assert ending.finished
    assert ending.state.best.score == 1.0 or ending.state.best.text
    assert len(agent.asked) - before == 6, "the baseline and the rollout were paid before; only the candidate is new"


def test_optimizer_that_is_unreadable_once_is_asked_again(tmp_path: Path) -> None:
    with MisbehavingLlm([], respond) as agent, MisbehavingLlm([bad.PROSE], respond) as optimizer:
        ending = train(request(tmp_path, agent, optimizer, workers=1), tmp_path)
    assert ending.finished
    assert ending.state.analyst.calls == len(optimizer.asked), "the attempt in prose is counted too"


def test_optimizer_in_a_fenced_block_is_read(tmp_path: Path) -> None:
    def fenced(body: bad.Body) -> str:
        return f"Here it is:\n```json\n{respond(body)}\n```\n"

    with MisbehavingLlm([], respond) as agent, MisbehavingLlm([], fenced) as optimizer:
        assert train(request(tmp_path, agent, optimizer), tmp_path).state.best.text


def test_outage_in_the_middle_keeps_every_reply_and_the_run_goes_on_without_paying_twice(tmp_path: Path) -> None:
    with MisbehavingLlm([], respond) as agent, MisbehavingLlm([], respond) as optimizer:
        whole = train(request(tmp_path, agent, optimizer), tmp_path / "whole")
        calls = len(agent.asked)
        agent.asked.clear()
        good, outage = [Act(text="unknown")] * 9, [bad.OUTAGE] * ATTEMPTS
        agent.plan = [*good, *outage]
        with pytest.raises(InfrastructureError, match="does not work"):
            train(request(tmp_path, agent, optimizer, workers=1), tmp_path / "broken")
        assert len(agent.asked) == 9 + ATTEMPTS
        again = train(request(tmp_path, agent, optimizer), tmp_path / "broken")
    assert again.state == whole.state
    assert len(agent.asked) == calls + ATTEMPTS


@pytest.mark.parametrize("cap", ["calls", "tokens", "money"])
def test_budget_of_a_role_ends_the_run_cleanly_before_it_is_passed(cap: str, tmp_path: Path) -> None:
    """Each answer takes 15 tokens, and can take about 90; baseline and rollout have 6 answers each."""
    price = {"prompt": 1e5, "completion": 1e5}
    limit = {"calls": 13, "tokens": 250, "money": 25.0}[cap]
    with MisbehavingLlm([], respond) as agent, MisbehavingLlm([], respond) as optimizer:
        role = {"budget": {cap: limit}, "price": price, "max_tokens": 20}
        made = request(tmp_path, agent, optimizer, target=role, workers=1)
        ending = train(made, tmp_path)
        assert not ending.finished
        assert f"of {limit:g} {cap}" in ending.why
        used = {"calls": 1, "tokens": 15, "money": 1.5}[cap] * len(agent.asked)
        assert used <= limit
        more = request(tmp_path, agent, optimizer, target=role | {"budget": {cap: 10**6}})
        assert train(more, tmp_path).finished, "a raised budget is no other run"


def test_budget_that_does_not_reach_the_baseline_says_so(tmp_path: Path) -> None:
    with MisbehavingLlm([], respond) as agent, MisbehavingLlm([], respond) as optimizer:
        made = request(tmp_path, agent, optimizer, target={"budget": {"calls": 2}})
        ending = train(made, tmp_path)
    assert (ending.finished, ending.state.baseline) == (False, None)
    assert "of 2 calls are used" in ending.why
