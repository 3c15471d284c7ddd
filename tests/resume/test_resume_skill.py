"""A skill run killed anywhere ends in the document, the history (minus time) and the tokens of one that was not, and
pays for no reply twice. Runs die in forked children, so that a kill is a real SIGKILL; several threads ask at once.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kill_points import run_until_killed

import toy_skill
from ratchet.core.errors import InputError
from ratchet.core.rundir import list_runs, request_stop
from ratchet.llm.client import Reply
from ratchet.llm.client import Request as Call
from ratchet.llm.scripted import Scripted
from ratchet.loops.skill import session

SMALL: dict[str, Any] = {
    "tasks": {"val_size": 8, "test_size": 4},
    "limit": 8,
    "batch_size": 4,
    "minibatch_size": 2,
    "learning_rate": 1,
    "min_learning_rate": 1,
    "use_slow_update": True,
    "slow_update_samples": 2,
    "target": {"price": {"prompt": 3.0, "completion": 5.0}},
}


@pytest.fixture(autouse=True)
def no_real_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL loses no page cache: real syncs would only make hundreds of runs slow."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    session.code()  # kept for the forked children
    return toy_skill.make_project(tmp_path_factory.mktemp("toy") / "projekt mit Ä")


@pytest.fixture(scope="module")
def unbroken(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a run comes to that nothing disturbed."""
    return life(project, tmp_path_factory.mktemp("unbroken"))[1]


class Asked(Scripted):
    """The toy's models, who write the key of each request they are asked to a file that outlives the process."""

    def __init__(self, log: Path) -> None:
        super().__init__(toy_skill.scripted)
        self.log = log

    def complete(self, request: Call) -> Reply:
        with self.log.open("a") as file:
            file.write(request.key() + "\n")
        return super().complete(request)


def life(project: Path, where: Path, log: str = "asked", **over: Any) -> Any:
    """One process' life."""
    where.mkdir(parents=True, exist_ok=True)
    asked = Asked(where / log)
    made = toy_skill.request(project, **toy_skill.merge(SMALL, over))
    return toy_skill.run(made, where, asked, asked)


def recorded(where: Path) -> set[str]:
    """Keys of the replies that are kept."""
    return {
        json.loads(line)["key"]
        for file in where.rglob("*.jsonl")
        if file.name in ("target.jsonl", "optimizer.jsonl")
        for line in file.read_text().split("\n")[:-1]
    }


def kills(project: Path, folder: Path, every: int) -> Iterator[tuple[str, Path]]:
    """Kill a fresh run at each `every`-th act of its; yields the act and the folder with what the dead left."""
    for nth in range(1, 100_000, every):
        attempt = folder / f"kill-{nth}"
        act = run_until_killed(partial(life, project, attempt, workers=3), nth)
        if act is None:
            return
        yield act, attempt
        shutil.rmtree(attempt)


@pytest.mark.slow
def test_skill_run_killed_anywhere_with_threads_ends_the_same_and_pays_no_reply_twice(
    project: Path, tmp_path: Path, unbroken: Any
) -> None:
    expected, acts = toy_skill.results(unbroken), list[str]()
    assert unbroken.history[-1]["slow_update"]["action"] == "reject", "slow_update is among what is killed"
    for act, attempt in kills(project, tmp_path, every=3):
        kept = recorded(attempt)
        _, resumed = life(project, attempt, "asked again", workers=2)
        assert toy_skill.results(resumed) == expected, f"killed {act}"
        again = (attempt / "asked again").read_text().split() if (attempt / "asked again").exists() else []
        assert not kept & set(again), f"killed {act}: paid twice"
        assert len(again) == len(set(again))
        acts.append(act)
    assert len(acts) >= 70
    names = " ".join(acts)
    for part in ("target.jsonl", "optimizer.jsonl", "HEAD", "ledger"):
        assert part in names, f"nothing was killed at {part}"


@pytest.mark.slow
def test_skill_run_killed_again_while_it_resumes_ends_the_same(project: Path, tmp_path: Path, unbroken: Any) -> None:
    for turn, (_, attempt) in enumerate(kills(project, tmp_path, every=97)):
        for again in range(2):
            run_until_killed(partial(life, project, attempt, workers=3), (turn * 29 + again * 53) % 150)
        _, resumed = life(project, attempt)
        assert toy_skill.results(resumed) == toy_skill.results(unbroken)


def test_skill_stopped_early_and_continued_equals_never_stopped(project: Path, tmp_path: Path, unbroken: Any) -> None:
    for stop in (1, 2, 3):
        ending, part = life(project, tmp_path / "stopped", stop_at=stop)
        assert (ending.finished, part.state.step, part.metrics["test"]) == (False, stop, None)
    ending, continued = life(project, tmp_path / "stopped")
    assert ending.finished
    assert toy_skill.results(continued) == toy_skill.results(unbroken)


def test_skill_finished_and_started_again_asks_nothing_and_says_the_same(project: Path, tmp_path: Path) -> None:
    _, first = life(project, tmp_path)
    _, second = life(project, tmp_path, "asked again")
    assert toy_skill.results(second) == toy_skill.results(first)
    assert not (tmp_path / "asked again").exists()


def test_skill_tokens_time_and_money_count_every_process(project: Path, tmp_path: Path) -> None:
    _, first = life(project, tmp_path, stop_at=1)
    _, second = life(project, tmp_path)
    for role in ("analyst", "rollout"):
        for name in ("calls", "prompt_tokens", "completion_tokens"):
            steps = sum(row["tokens"][role][name] for row in second.history)
            seed = second.rows[0]["calls"] if (role, name) == ("rollout", "calls") else 0
            assert name != "calls" or second.summary["tokens"][role][name] == steps + seed
            assert second.summary["tokens"][role][name] >= first.summary["tokens"][role][name]
    assert second.summary["cost"] > first.summary["cost"] > 0
    assert second.summary["seconds"] >= sum(row["seconds"] for row in first.rows)
    assert [row["cumulative"]["cost"] for row in second.history] == sorted(
        row["cumulative"]["cost"] for row in second.history
    )


def test_skill_extended_beyond_the_horizon_holds_the_lowest_budget_and_is_tested_anew(
    project: Path, tmp_path: Path
) -> None:
    _, short = life(project, tmp_path, num_epochs=1, learning_rate=2, min_learning_rate=1)
    assert short.summary["extension"] is None
    ending, longer = life(project, tmp_path, num_epochs=1, learning_rate=2, min_learning_rate=1, extend_epochs=2)
    assert ending.finished
    assert longer.summary["extension"] == {"from_step": 3, "steps": 4, "epochs": 2.0}
    assert [row["edit_budget"] for row in longer.history] == [2, 1, 1, 1, 1, 1]
    assert [row["extension"] for row in longer.history] == [False, False, True, True, True, True]
    assert longer.history[:2] == short.history
    best = longer.state.best.text
    assert best != short.state.best.text
    assert [row.said for row in longer.tested.best.rows] == [
        toy_skill.agent(best, row.question) for row in longer.tested.best.rows
    ]


def test_skill_schedule_of_a_continued_run_does_not_shift(project: Path, tmp_path: Path) -> None:
    budgets = []
    for stop in (1, 2, 3, 4):
        _, part = life(project, tmp_path, stop_at=stop, learning_rate=8, min_learning_rate=1, lr_scheduler="linear")
        budgets.append([row["edit_budget"] for row in part.history])
    assert budgets[-1] == [8, 6, 3, 1]
    assert all(found == budgets[-1][: len(found)] for found in budgets)


def test_skill_rejected_edits_and_state_survive_a_stop(project: Path, tmp_path: Path) -> None:
    def wrong(call: Call) -> str:
        """An optimizer whose edits help nobody."""
        said = toy_skill.scripted(call)
        return re.sub(r"(\d) means \w+", r"\1 means nothing", said) if call.model == "optimizer" else said

    made = toy_skill.request(project, **toy_skill.merge(SMALL, {"stop_at": 1}))
    _, part = toy_skill.run(made, tmp_path, optimizer_=Scripted(wrong))
    assert part.history[0]["action"] == "reject"
    assert part.state.rejected
    state = json.loads(next(tmp_path.rglob("checkpoints/*2/manifest.json")).read_text())["state"]
    assert [each["edit"]["content"] for each in state["rejected"]] == [e.edit.content for e in part.state.rejected]
    asked = Scripted(wrong)
    toy_skill.run(toy_skill.request(project, **toy_skill.merge(SMALL, {"stop_at": 2})), tmp_path, optimizer_=asked)
    told = [call.text() for call in asked.asked if "got these tasks wrong" in call.text()]
    assert told
    assert all("turned down; do not propose them again" in text for text in told)


def test_skill_run_moved_to_another_folder_goes_on(project: Path, tmp_path: Path, unbroken: Any) -> None:
    life(project, tmp_path / "here", stop_at=2)
    shutil.move(tmp_path / "here", tmp_path / "dort ü")
    ending, moved = life(project, tmp_path / "dort ü", "asked again")
    assert ending.finished
    assert toy_skill.results(moved) == toy_skill.results(unbroken)


def test_skill_changed_seed_starts_fresh_and_a_resume_refuses_it_by_name(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    life(project, tmp_path, stop_at=1)
    path = list_runs(tmp_path / "runs")[0].path
    made = toy_skill.request(project, **toy_skill.merge(SMALL, {"seed": 7}))
    here = toy_skill.settings(tmp_path).model_copy(update={"resume_run": path})
    with pytest.raises(InputError, match=r"params\.seed 42 → 7"):
        toy_skill.run(made, tmp_path, here=here)
    toy_skill.run(made, tmp_path)
    assert "starts fresh" in capsys.readouterr().err
    assert len(list_runs(tmp_path / "runs")) == 2


def test_skill_stop_file_ends_after_the_step_and_the_run_goes_on_exactly(
    project: Path, tmp_path: Path, unbroken: Any
) -> None:
    made = toy_skill.request(project, **SMALL)
    with session.open_session(made, toy_skill.settings(tmp_path)) as opened:
        models = Scripted(toy_skill.scripted)
        who = toy_skill.players(made, opened.path, models, models)
        ending = session.train(
            made, who, opened, say=lambda line: request_stop(opened.path) if "step 2/" in line else None
        )
    assert (ending.finished, ending.asked, ending.state.step) == (False, True, 2)
    assert list_runs(tmp_path / "runs")[0].state == "stopped"
    _, continued = life(project, tmp_path)
    assert toy_skill.results(continued) == toy_skill.results(unbroken)
