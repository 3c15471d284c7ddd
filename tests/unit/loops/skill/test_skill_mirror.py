"""The W&B mirror of a skill training: each step once, and what a person should see, read back from offline files."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

import toy_skill
from ratchet.core.rundir import list_runs
from ratchet.loops.skill import session
from ratchet.loops.skill.mirror import COLUMNS, SkillMirror, points
from ratchet.settings import Settings
from ratchet.train.wandb_files import entries, recorded_alerts, recorded_steps
from steps import skill


def trained(where: Path, patch: pytest.MonkeyPatch, **over: Any) -> skill.publish.Published:
    """One process' life of the stage, its agent and optimizer scripted."""
    scripted = toy_skill.Scripted(toy_skill.scripted)
    patch.setattr(session, "players", lambda params, folder, here: toy_skill.players(made, folder, scripted, scripted))
    patch.setattr(skill, "settings", lambda: Settings(runs=where / "runs", threads=1, wandb="offline"))
    made = toy_skill.request(toy_skill.make_project(where), use_slow_update=True, **over)
    return skill.train(made)


@pytest.mark.slow
def test_skill_mirror_holds_each_step_and_each_alert_once_in_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training that pauses after step 2, goes on to its end, and is opened once more."""
    trained(tmp_path, monkeypatch, stop_at=2)
    run = list_runs(tmp_path / "runs")[0].path
    name = json.loads((run / "wandb.json").read_text())["id"]
    assert recorded_steps(run, name) == {0, 1, 2}
    assert recorded_alerts(run, name) == {"skill: slow_update is on"}
    for _ in ("goes on", "again"):
        time.sleep(1.1)  # W&B names the folder by the second
        published = trained(tmp_path, monkeypatch)
    files = sorted((run / "wandb").glob("offline-run-*/*.wandb"))
    records = [record for file in files for record in entries(file)]
    steps = [record.history.step.num for record in records if record.WhichOneof("record_type") == "history"]
    assert steps == list(range(published.state.step + 1))
    titles = [record.alert.title for record in records if record.WhichOneof("record_type") == "alert"]
    assert titles[0] == "skill: slow_update is on"
    assert sorted(titles) == sorted(f"skill: {each.what}" for each in published.found)


def test_skill_mirror_disabled_leaves_no_file(tmp_path: Path) -> None:
    here = Settings(runs=tmp_path / "runs", threads=1, wandb="disabled")
    with session.open_session(toy_skill.request(toy_skill.make_project(tmp_path)), here) as opened:
        before = sorted(opened.path.rglob("*"))
        mirror = SkillMirror(here, opened)
        mirror.send()
        mirror.close()
        assert sorted(opened.path.rglob("*")) == before


def test_points_have_every_column_and_sum_the_tokens() -> None:
    tokens = {"analyst": {"calls": 1, "prompt_tokens": 10, "completion_tokens": 5},
              "rollout": {"calls": 9, "prompt_tokens": 20, "completion_tokens": 7}}  # fmt: skip
    (told,) = points([{"step": 3, "tokens": tokens, "action": "accept_new_best", "edit_budget": 4}])
    assert set(told) == {"step", *COLUMNS}
    assert (told["tokens"], told["accepted"], told["edit_budget"], told["rollout_hard"]) == (42, 1, 4, None)
