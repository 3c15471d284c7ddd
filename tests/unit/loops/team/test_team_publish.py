"""What a run comes to, as files: a history its schema accepts, samples, summary, agents; the same after a stop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import toy_team
from ratchet.core.rundir import list_runs, request_stop
from ratchet.loops.team import publish, session
from ratchet.tables import team_history

SMALL: dict[str, Any] = {"num_train_epochs": 2, "max_new_tokens": 4, "num_generations": 2, "test_samples": 1,
                         "kept_items": 2}  # fmt: skip


def published(where: Path, out: Path, **over: Any) -> tuple[publish.Published, session.Session]:
    here, config = toy_team.settings(where), toy_team.config(**{**SMALL, **over})
    live = session.make_session(config, toy_team.sources(), toy_team.LetterTask(items=4, held_out=2), here)
    with session.open_session(live, here) as run:
        ending = session.Driver(live, run, here, lambda line: None).drive()
        found = publish.gather(live, ending)
    publish.write(found, out, live.team)
    return found, live


def test_published_files_are_whole_and_fit_their_schemas(tmp_path: Path) -> None:
    found, live = published(tmp_path, tmp_path / "out")
    table = team_history.read(tmp_path / "out/history.json")
    assert list(table["env_step"]) == [4, 8, 12, 16]
    samples = [json.loads(line) for line in (tmp_path / "out/samples.jsonl").read_text().splitlines()]
    assert [(one["epoch"], one["item"], one["turn"]) for one in samples] == [(1, 0, 0), (1, 1, 0), (2, 0, 0), (2, 1, 0)]
    assert len(samples[0]["completions"]) == 2
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert summary["held_out"] == found.metrics["held_out"]
    assert summary["params"]["num_generations"] == 2
    assert found.metrics["train_reward"]["last_epoch"] == pytest.approx(table["reward_mean"].iloc[2:].mean())
    assert [row["seq"] for row in found.timing] == [0, 1, 2, 3]
    assert "team: letters, 2 epochs, 16 env steps: held-out reward" in publish.sentence(found, live.config)


def test_published_results_hold_no_time_and_are_the_same_after_a_stop(tmp_path: Path) -> None:
    whole, _ = published(tmp_path / "whole", tmp_path / "one")
    here, config = toy_team.settings(tmp_path / "parts"), toy_team.config(**SMALL)
    live = session.make_session(config, toy_team.sources(), toy_team.LetterTask(items=4, held_out=2), here)
    with session.open_session(live, here) as run:
        said = iter(range(100))
        stopped = session.Driver(live, run, here, lambda line: next(said) == 1 and request_stop(run.path)).drive()
    assert stopped.exit_code == 143
    again, _ = published(tmp_path / "parts", tmp_path / "other")
    for name in ("history.json", "samples.jsonl", "summary.json", "agents/agent-1/model.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes(), name
    assert again.metrics == whole.metrics
    assert [row["resumed"] for row in whole.timing] == [False] * 4
    assert sum(row["resumed"] for row in again.timing) == 1


def test_published_agents_are_the_trained_ones_and_load_as_any_model(tmp_path: Path) -> None:
    _, live = published(tmp_path, tmp_path / "out")
    for agent in range(2):
        folder = tmp_path / f"out/agents/agent-{agent}"
        loaded = dict(AutoModelForCausalLM.from_pretrained(folder).named_parameters())
        assert all(torch.equal(loaded[name], tensor) for name, tensor in live.team.weights(agent).items())
        assert AutoTokenizer.from_pretrained(folder)("ab").input_ids == toy_team.tokenizer()("ab").input_ids
    start = dict(toy_team.model().named_parameters())
    assert any(not torch.equal(loaded[name], start[name]) for name in start)


def test_published_again_from_a_finished_run_is_the_same(tmp_path: Path) -> None:
    """Nothing is left to train then: the agents come from the checkpoint."""
    published(tmp_path, tmp_path / "one")
    published(tmp_path, tmp_path / "other")
    assert len(list_runs(tmp_path / "runs")) == 1
    name = "agents/agent-0/model.safetensors"
    assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


def test_published_shared_and_adapted_agents_are_stored_once(tmp_path: Path) -> None:
    published(tmp_path, tmp_path / "shared", shared_weights=True)
    assert [path.name for path in (tmp_path / "shared/agents").iterdir()] == ["agent-0-1"]
    published(tmp_path, tmp_path / "lora", lora={"r": 2})
    assert sorted(path.name for path in (tmp_path / "lora/agents/agent-0").iterdir()) == ["trained.safetensors"]
