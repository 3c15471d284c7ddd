"""The W&B mirror of a team training against W&B's own offline files, read back by W&B's own reader."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import toy_team
from ratchet.core.checkpoint import read_metadata
from ratchet.core.errors import InputError
from ratchet.core.rundir import list_runs
from ratchet.loops.team.mirror import due, mirror_again, with_rate
from toy_training import in_child
from wandb_files import inspected

SMALL: dict[str, Any] = {"num_train_epochs": 2, "max_new_tokens": 4, "num_generations": 2, "test_samples": 1}


def told(run: Path) -> tuple[list[dict[str, Any]], set[str]]:
    """(rows in the order they were logged, run ids) over all offline files."""
    records = list(inspected(run))
    rows = [record["history"]["item"] for record in records if record["type"] == "history"]
    return rows, {record["run"]["run_id"] for record in records if record["type"] == "run"}


def train(where: Path, **over: Any) -> tuple[Any, Path]:
    return toy_team.train(where, here=toy_team.settings(where, wandb="offline"), **{**SMALL, **over})


def wait_until_written(folder: Path) -> None:
    """Return when W&B's offline file holds more than its head and has not grown for longer than a flush takes."""
    size, since, until = 0, time.monotonic(), time.monotonic() + 20
    while time.monotonic() < until and (size < 8 or time.monotonic() - since < 4):
        now = sum(file.stat().st_size for file in folder.rglob("run-*.wandb") if "latest-run" not in file.parts)
        if now != size:
            size, since = now, time.monotonic()
        time.sleep(0.1)


@pytest.mark.slow
def test_team_mirror_of_a_killed_and_resumed_run_holds_each_row_once_in_one_run(tmp_path: Path) -> None:
    """A real SIGKILL inside the second epoch: rows that were sent before it are made and sent no second time."""

    def killed() -> None:
        def die(line: str) -> None:
            if "env step 16" in line:
                wait_until_written(tmp_path)
                os.kill(os.getpid(), signal.SIGKILL)

        train(tmp_path, say=die)

    assert in_child(killed) == -signal.SIGKILL
    run = list_runs(tmp_path / "runs")[0].path
    before, _ = told(run)
    assert [row["team/step"] for row in before] == [4, 8, 12, 16], "row 16 was sent, its segment never committed"
    ending: Any = None

    def resumed() -> None:
        nonlocal ending
        ending, _ = train(tmp_path, num_train_epochs=4)
        (tmp_path / "rows.json").write_text(json.dumps(ending.rows))

    assert in_child(resumed) == 0
    rows, ids = told(run)
    expected = json.loads((tmp_path / "rows.json").read_text())
    assert [row["team/step"] for row in rows] == [row["env_step"] for row in expected] == list(range(4, 52, 4))
    for row, wanted in zip(rows, expected, strict=True):
        for name in ("reward_mean", "agent1_entropy", "loss", "epoch", "eval_reward"):
            if wanted[name] is not None:
                assert row[f"team/{name}"] == pytest.approx(wanted[name]), name
    defined = [record["metric"] for record in inspected(run) if record["type"] == "metric"]
    assert any(one.get("glob_name") == "team/*" and one["step_metric"] == "team/step" for one in defined)
    assert ids == {read_metadata(run / "checkpoint-4")["labels"]["wandb"]["id"]}


class Flat(toy_team.LetterTask):
    """Whatever is said earns the same: nothing can be learnt from it."""

    def reward(self, completions: list[list[str]], items: list[Any]) -> list[float]:
        return [0.5] * len(completions[0])


@pytest.mark.slow
def test_team_mirror_tells_a_finding_once_though_the_run_is_opened_again(tmp_path: Path) -> None:
    def body() -> None:
        for _ in ("trained", "opened again"):
            ending, _ = train(tmp_path, task=Flat(), eval_interval=0)
            time.sleep(1.1)  # W&B names the folder by the second
        (tmp_path / "found.json").write_text(json.dumps([each.what for each in ending.found]))

    assert in_child(body) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert "the agents have no new ideas" in found
    run = list_runs(tmp_path / "runs")[0].path
    assert [record["alert"]["title"] for record in inspected(run) if record["type"] == "alert"] == [
        f"team: {what}" for what in found
    ]


@pytest.mark.slow
def test_team_mirror_again_sends_what_is_missing(tmp_path: Path) -> None:
    def body() -> None:
        ending, run = train(tmp_path)
        for file in run.rglob("*.wandb"):
            file.unlink()
        time.sleep(1.1)  # W&B names the folder by the second
        for _ in ("what is missing", "nothing twice"):
            assert mirror_again(run, toy_team.settings(tmp_path, wandb="offline")) == len(ending.rows)
            time.sleep(1.1)
        (tmp_path / "steps.json").write_text(json.dumps([row["env_step"] for row in ending.rows]))

    assert in_child(body) == 0
    run = list_runs(tmp_path / "runs")[0].path
    assert [row["team/step"] for row in told(run)[0]] == json.loads((tmp_path / "steps.json").read_text())


def test_team_mirror_again_of_a_run_without_wandb_is_refused(tmp_path: Path) -> None:
    _, run = toy_team.train(tmp_path, **SMALL, eval_interval=0)
    with pytest.raises(InputError, match="was trained with W&B disabled"):
        mirror_again(run, toy_team.settings(tmp_path))


def test_due_rows_are_a_function_of_the_rows_alone() -> None:
    rows = [{"env_step": step, "eval_reward": 1.0 if step == 12 else None} for step in range(4, 60, 4)]
    assert [row["env_step"] for row in due(rows, 1)] == list(range(4, 60, 4))
    assert [row["env_step"] for row in due(rows, 20)] == [4, 12, 24, 44]
    for upto in range(len(rows)):
        assert due(rows[:upto], 20) == [row for row in due(rows, 20) if row in rows[:upto]]


def test_with_rate_is_tokens_of_the_row_over_its_seconds() -> None:
    assert with_rate({"new_tokens": 30, "seconds": 2.0})["tokens_per_s"] == 15.0
    assert with_rate({"new_tokens": 30, "seconds": 0.0})["tokens_per_s"] is None
