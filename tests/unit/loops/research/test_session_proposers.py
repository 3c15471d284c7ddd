"""Whole toy sessions with the real proposers: a model's answers, its record, and the session done again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from ratchet.llm.client import Request
from ratchet.llm.scripted import Scripted
from ratchet.loops.research.proposers.llm import Llm, LlmParams
from ratchet.loops.research.records import Proposer
from ratchet.loops.research.session import Parts, Published, iterate_and_publish
from toy_session import Scripted as ScriptedProposer
from toy_session import edit, fake_laboratory, request, rows, settings, toy_repository

pytestmark = pytest.mark.slow

BLOCK = "DESCRIPTION: {}\n<<<<<<< SEARCH\n{}\n=======\n{}\n>>>>>>> REPLACE\n"


def model(asking: Request) -> str:
    """A stand-in for a model that reads its prompt: widens, talks, fails, mends, and tries another rate."""
    asked = asking.messages[1].text
    if len(asking.messages) > 2:
        return "I would rather talk."
    if "It failed: RuntimeError: boom" in asked and "| it said so" in asked:
        return BLOCK.format("mended", 'FAIL = "boom"', 'FAIL = ""\nLIMIT = 1')
    if "Of 1 experiments" in asked:
        return BLOCK.format("шире", "WIDTH = 4", "WIDTH = 6")
    if "Of 2 experiments" in asked:
        return "Let us talk about it."
    if "Of 3 experiments" in asked:
        return BLOCK.format("fails", 'FAIL = ""', 'FAIL = "boom"')
    return BLOCK.format("another rate", "RATE = 0.1", "RATE = 0.3")


def session(project: Path, who: Proposer | None, **over: Any) -> dict[str, Any]:
    """A session in `project`; `who` None = the one that the parameters name."""
    outputs = Published(project / "out/iterate", project / "out/iterate.json")
    parts = Parts(who, fake_laboratory)
    return iterate_and_publish(request(project, **over), outputs, settings(project), parts)


def llm_session(project: Path, proposer: Llm) -> list[dict[str, str]]:
    session(project, proposer, proposer="llm", experiments=5)
    return rows(project / "out")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, str]]]:
    """A finished session with a model, and its rows."""
    project = toy_repository(tmp_path_factory.mktemp("sessions") / "first")
    return project, llm_session(project, Llm(LlmParams(model="m"), Scripted(model)))


def test_session_with_a_model_keeps_mends_and_goes_on(first: tuple[Path, list[dict[str, str]]]) -> None:
    table = first[1]
    assert [row["status"] for row in table] == ["keep", "keep", "crash", "crash", "discard", "discard"]
    assert [row["description"] for row in table[1:]] == ["шире", "no proposal", "fails", "mended", "another rate"]
    assert "no edit after one repair: the reply has no block" in table[2]["reason"]
    assert {row["proposer"] for row in table[1:]} == {"llm"}


def test_session_replayed_from_its_results_is_the_same_in_every_column(
    first: tuple[Path, list[dict[str, str]]], tmp_path: Path
) -> None:
    shutil.copytree(first[0] / "out/iterate", tmp_path / "results")
    again = toy_repository(tmp_path / "again")
    session(again, None, proposer="replay", experiments=5, replay={"session": str(tmp_path / "results")})
    assert rows(again / "out") == first[1]


def test_session_replayed_from_its_record_asks_nobody_and_is_the_same(
    first: tuple[Path, list[dict[str, str]]], tmp_path: Path
) -> None:
    record = first[0] / "out/iterate/calls.jsonl"
    again = toy_repository(tmp_path / "again")
    params = LlmParams(model="m", record=str(record), replay=True)
    assert llm_session(again, Llm(params)) == first[1]
    assert {float(row["cost"]) for row in rows(again / "out", without=())} == {0.0}


def test_session_whose_models_budget_is_used_up_ends_and_goes_on_when_it_is_raised(tmp_path: Path) -> None:
    project = toy_repository(tmp_path / "project")
    for calls, experiments in ((1, 1), (3, 2)):
        llm = {"model": "m", "budget": {"calls": calls}}
        proposer = Llm(LlmParams.model_validate(llm), Scripted(model))
        told = session(project, proposer, proposer="llm", experiments=5, llm=llm)
        assert (told["experiments"], told["kept"]) == (experiments, 1)
        assert told["ended"] == f"{calls} of {calls} calls are used and the next call can take 1"


def test_session_of_another_proposer_replays_its_failures_to_propose(tmp_path: Path) -> None:
    script = [("no idea", "none"), ("wider", edit("WIDTH = 4", "WIDTH = 7"))]
    project = toy_repository(tmp_path / "project")
    session(project, ScriptedProposer(script), experiments=2)
    shutil.copytree(project / "out/iterate", tmp_path / "results")
    again = toy_repository(tmp_path / "again")
    session(again, None, proposer="replay", experiments=2, replay={"session": str(tmp_path / "results")})
    assert rows(again / "out") == rows(project / "out")
    assert [row["proposer"] for row in rows(again / "out")[1:]] == ["scripted", "scripted"]
