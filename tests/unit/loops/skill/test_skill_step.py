"""What a step carries into the next: rejected edits within an epoch, the epoch's first document, lessons, samples."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

import toy_skill
from ratchet.llm.client import Request as Call
from ratchet.llm.scripted import Scripted
from ratchet.loops.skill.publish import Published
from ratchet.loops.skill.session import code

SLOW: dict[str, Any] = {"tasks": {"val_size": 8, "test_size": 4}, "limit": 12, "batch_size": 6, "minibatch_size": 3,
                        "learning_rate": 1, "min_learning_rate": 1, "num_epochs": 3}  # fmt: skip


@pytest.fixture(autouse=True)
def no_real_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing dies here."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    code()


def useless(call: Call) -> str:
    """An optimizer whose edits help nobody, each another one."""
    said = toy_skill.scripted(call)
    return re.sub(r"(\d) means \w+", r"\1 means nothing", said) if call.model == "optimizer" else said


def run(folder: Path, optimizer: Any = toy_skill.scripted, **over: Any) -> tuple[Published, list[str]]:
    """A run, and what its optimizer was asked, in order."""
    asked = Scripted(optimizer)
    made = toy_skill.request(toy_skill.make_project(folder), **{**SLOW, **over}, workers=1)
    return toy_skill.run(made, folder, Scripted(toy_skill.scripted), asked)[1], [call.text() for call in asked.asked]


def test_rejected_edits_are_shown_within_their_epoch_and_forgotten_at_its_end(tmp_path: Path) -> None:
    published, asked = run(tmp_path, useless, num_epochs=2)
    assert {row["action"] for row in published.history} == {"reject"}
    told = ["turned down; do not" in text for text in asked if "got these tasks wrong" in text]
    each = len(told) // 4
    assert told == ([False] * each + [True] * each) * 2
    assert [len(state) for state in (published.state.rejected,)] == [2]


def test_rejected_edits_are_not_shown_when_switched_off(tmp_path: Path) -> None:
    _, asked = run(tmp_path, useless, num_epochs=1, use_rejected_edits=False)
    assert not any("turned down; do not" in text for text in asked)


def test_slow_update_compares_with_the_document_of_the_epoch_before(tmp_path: Path) -> None:
    published, asked = run(tmp_path, use_slow_update=True, num_epochs=2)
    guided = [text for text in asked if "The document an epoch ago" in text]
    assert len(guided) == 1
    after_first_epoch = published.rows[2]["skill"]
    assert after_first_epoch
    assert f"The document an epoch ago:\n{toy_skill.json.dumps(after_first_epoch)}" in guided[0]


def test_step_whose_slow_update_passes_the_gate_is_recorded_as_it_left_the_document(tmp_path: Path) -> None:
    def helped(call: Call) -> str:
        said = call.fields()["messages"][-1]["content"]
        if call.model == "agent" and "keep what works" in call.text():
            return toy_skill.WORDS[int(re.findall(r"\d+", said)[-1]) % 10]
        return toy_skill.scripted(call)

    asked = Scripted(helped)
    made = toy_skill.request(toy_skill.make_project(tmp_path), **SLOW | {"num_epochs": 2}, use_slow_update=True)
    _, published = toy_skill.run(made, tmp_path, asked, asked)
    last = published.history[-1]
    assert last["slow_update"]["action"] == "accept_new_best"
    assert (last["current_origin"], last["best_origin"], last["best_step"]) == ("slow_update_2",) * 2 + (4,)
    assert last["current_score"] == last["best_score"] == last["slow_update"]["selection"]["hard"] == 1.0
    assert last["skill_len"] == len(published.rows[-1]["skill"]) == len(published.state.best.text)
    assert last["cumulative"]["calls"] == published.state.analyst.calls + published.state.rollout.calls
    steps = [sum(row["tokens"][role]["calls"] for role in ("analyst", "rollout")) for row in published.history]
    assert sum(steps) + published.rows[0]["calls"] == last["cumulative"]["calls"]


def test_lessons_are_drawn_once_before_the_third_epoch_and_shown_in_it(tmp_path: Path) -> None:
    published, asked = run(tmp_path)
    drawn = [place for place, text in enumerate(asked) if "The steps of the last epoch" in text]
    shown = [place for place, text in enumerate(asked) if "Lessons of the last epoch" in text]
    assert len(drawn) == 1
    assert shown
    assert min(shown) > drawn[0]
    assert '"step": 3' in asked[drawn[0]]
    assert "wall_time_s" not in asked[drawn[0]], "a clock in a request would make each run another one"
    _, without = run(tmp_path / "off", use_meta_skill=False)
    assert not any("The steps of the last epoch" in text for text in without)
    assert published.state.meta_skill.startswith("lesson")


def test_rewrite_mode_asks_for_the_document_once_a_step(tmp_path: Path) -> None:
    published, asked = run(tmp_path, update_mode="rewrite", num_epochs=1, learning_rate=4)
    assert sum("Write the whole document anew" in text for text in asked) == len(published.history)
    assert {edit["status"] for row in published.rows for edit in row["edits"]} == {"rewritten"}


def test_agent_that_samples_is_asked_anew_each_epoch_and_a_greedy_one_is_not(tmp_path: Path) -> None:
    def samples(temperature: float) -> set[int]:
        models = Scripted(toy_skill.scripted)
        over = {**SLOW, "num_epochs": 2, "target": {"temperature": temperature}}
        made = toy_skill.request(toy_skill.make_project(tmp_path), **over)
        toy_skill.run(made, tmp_path, models, models)
        return {call.sample for call in models.asked if call.model == "agent"}

    assert samples(0.0) == {0}
    assert samples(0.7) == {0, 1, 2}
