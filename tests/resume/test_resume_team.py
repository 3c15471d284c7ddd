"""A team training killed anywhere, stopped anywhere or asked for more epochs ends in the bytes of one that never was:
weights, optimizer state, history, evaluation. Runs die in forked children, so that a kill is a real SIGKILL."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kill_points import run_until_killed

import toy_team
from ratchet.core.checkpoint import Store, read_metadata
from ratchet.core.errors import InputError
from ratchet.core.rundir import list_runs, request_stop
from ratchet.core.seeds import derive
from ratchet.loops.team import session

SMALL: dict[str, Any] = {
    "num_train_epochs": 2, "max_new_tokens": 4, "num_generations": 2, "eval_interval": 2, "eval_num_samples": 2,
    "test_samples": 1, "rollout_buffer_size": 2, "kept_items": 1,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "two agents": {},
    "three agents": {"num_agents": 3, "joint_mode": "cross"},
    "two turns": {"num_turns": 2, "discount": 0.9, "rollout_buffer_size": 4, "reference_kl_enabled": True},
    "three agents, two turns": {"num_agents": 3, "num_turns": 2, "train_batch_size": 1, "shared_weights": True},
}


@pytest.fixture(autouse=True)
def no_real_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL loses no page cache: real syncs would only make hundreds of runs slow."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="module", autouse=True)
def code_is_hashed_once() -> None:
    """Kept for the forked children."""
    session.code()


def life(where: Path, **over: Any) -> tuple[Any, Path]:
    """One process' life."""
    made = SMALL | over
    task = toy_team.LetterTask(items=5, held_out=2, agents=made.get("num_agents", 2))
    return toy_team.train(where, task=task, **made)


def results(ending: Any, run: Path) -> dict[str, Any]:
    """All that must be the same; no time."""
    store = Store(run)
    head = store.head()
    assert head is not None
    folder = store.path(head[0])
    rows = [{key: value for key, value in row.items() if key not in ("seconds", "resumed")} for row in ending.rows]
    state = {key: value for key, value in read_metadata(folder)["state"].items() if key not in ("seconds", "wandb")}
    blobs = {file.name: file.read_bytes() for file in sorted(folder.glob("*.safetensors"))}
    assert len(blobs) >= 2
    return {"rows": rows, "state": state, "blobs": blobs, "evaluation": ending.evaluation}


def kills(folder: Path, stride: int, seed: int, **over: Any) -> Iterator[tuple[str, Path]]:
    """Kill fresh runs at acts some `stride` apart, so that all kinds are met; yields the act and what the dead left."""
    nth = 1
    while True:
        attempt = folder / f"kill-{nth}"
        act = run_until_killed(partial(life, attempt, **over), nth)
        if act is None:
            return
        yield act, attempt
        shutil.rmtree(attempt)
        nth += 1 + derive(seed, "stride", nth) % (2 * stride - 1)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a training comes to that nothing disturbed."""
    return results(*life(tmp_path_factory.mktemp("unbroken")))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_team_killed_anywhere_and_resumed_ends_in_the_same_bytes(case: str, tmp_path: Path) -> None:
    """With checkpoints after every item, so that kills fall into all parts of an epoch."""
    over = {**CASES[case], "checkpoint_seconds": 1e-9}
    expected, acts = results(*life(tmp_path / "unbroken", **CASES[case])), list[str]()
    for act, attempt in kills(tmp_path, 23, list(CASES).index(case), **over):
        assert results(*life(attempt, **over)) == expected, f"killed {act}"
        acts.append(act)
    assert len(acts) >= 5


@pytest.mark.slow
def test_team_killed_at_its_record_its_weights_and_its_evaluation_ends_the_same(
    tmp_path: Path, unbroken: dict[str, Any]
) -> None:
    """The kinds of act that matter most, each once, with a checkpoint an epoch as by default."""
    met = set[str]()
    parts = ("updates.jsonl", "model-0.safetensors", "optimizer-1.safetensors", "torn ledger", "evaluation", "HEAD")
    for act, attempt in kills(tmp_path, 2, 7):
        kind = next((part for part in parts if part in act and part not in met), None)
        if kind:
            assert results(*life(attempt)) == unbroken, f"killed {act}"
            met.add(kind)
        if len(met) == len(parts):
            return
    raise AssertionError(f"nothing was killed at {set(parts) - met}")


@pytest.mark.slow
def test_team_killed_again_while_it_resumes_ends_the_same(tmp_path: Path, unbroken: dict[str, Any]) -> None:
    for turn, (_, attempt) in enumerate(kills(tmp_path, 60, 3, checkpoint_seconds=1e-9)):
        for again in range(2):
            run_until_killed(partial(life, attempt, checkpoint_seconds=1e-9), (turn * 29 + again * 17) % 90)
        assert results(*life(attempt)) == unbroken


@pytest.mark.parametrize("case", CASES)
def test_team_two_epochs_and_two_more_equal_four(case: str, tmp_path: Path) -> None:
    expected = results(*life(tmp_path / "unbroken", **CASES[case], num_train_epochs=4))
    first, run = life(tmp_path / "continued", **CASES[case], num_train_epochs=2)
    assert first.state.epoch == 2
    ending, same = life(tmp_path / "continued", **CASES[case], num_train_epochs=4)
    assert same == run, "one run, not two"
    assert results(ending, run) == expected
    assert [row["seq"] for row in ending.rows] == list(range(len(ending.rows)))
    steps = [row["env_step"] for row in ending.rows]
    assert steps == sorted(set(steps)), "each env step once, in order"


def test_team_checkpoints_are_named_by_their_epoch_and_tell_what_they_are(tmp_path: Path) -> None:
    here = toy_team.settings(tmp_path, wandb="offline")
    ending, run = life(tmp_path, here=here, num_train_epochs=3)
    assert sorted(path.name for path in run.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-3"]
    metadata = read_metadata(run / "checkpoint-3")
    assert metadata["state"]["epoch"] == 3
    assert metadata["state"]["env_step"] == ending.state.env_step
    assert metadata["labels"]["wandb"]["project"] == "ratchet"
    assert metadata["fingerprint"] == run.name


def test_team_tied_weights_are_stored_once(tmp_path: Path) -> None:
    _, run = life(tmp_path)
    file = run / "checkpoint-2/model-0.safetensors"
    weights = sum(p.numel() for p in toy_team.model().parameters())
    assert weights * 4 <= file.stat().st_size < weights * 4 + 4096


def test_team_intervals_and_epochs_may_change_and_the_bytes_do_not(tmp_path: Path) -> None:
    expected = results(*life(tmp_path / "unbroken", num_train_epochs=3))
    life(tmp_path / "changed", num_train_epochs=1)
    changes = {"num_train_epochs": 3, "checkpoint_interval": 2, "logging_steps": 50, "keep_last": 1}
    ending, run = life(tmp_path / "changed", **changes)
    assert results(ending, run) == expected
    assert [path.name for path in run.glob("checkpoint-*")] == ["checkpoint-3"]


def test_team_stop_inside_an_epoch_is_committed_and_goes_on_exactly(tmp_path: Path, unbroken: dict[str, Any]) -> None:

    def stop(line: str) -> None:
        if "env step 8" in line:
            request_stop(list_runs(tmp_path / "stopped/runs")[0].path)

    ending, _ = life(tmp_path / "stopped", say=stop)
    assert (ending.exit_code, ending.state.epoch, ending.state.position) == (143, 0, 4)
    assert list_runs(tmp_path / "stopped/runs")[0].state == "stopped"
    assert results(*life(tmp_path / "stopped")) == unbroken


def test_team_damaged_newest_checkpoint_gives_way_to_the_one_before_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = results(*life(tmp_path / "unbroken", num_train_epochs=3))
    _, run = life(tmp_path / "damaged", num_train_epochs=2)
    file = run / "checkpoint-2" / "model-1.safetensors"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    ending = life(tmp_path / "damaged", num_train_epochs=3)
    said = capsys.readouterr().err
    assert "model-1.safetensors" in said
    assert "continuing from" in said
    assert results(*ending) == expected


def test_team_with_no_good_checkpoint_left_is_refused(tmp_path: Path) -> None:
    _, run = life(tmp_path, keep_last=1)
    (run / "checkpoint-2" / "optimizer-0.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match=r"optimizer-0\.safetensors: has 0 bytes"):
        life(tmp_path, num_train_epochs=3)


def test_team_stale_temp_folders_are_swept(tmp_path: Path) -> None:
    _, run = life(tmp_path, num_train_epochs=1)
    stale = run / "checkpoints" / ".00000009.ratchet-tmp-1"
    stale.mkdir()
    (stale / "model-0.safetensors").write_bytes(b"half")
    life(tmp_path, num_train_epochs=2)
    assert not stale.exists()


def test_team_fewer_epochs_than_are_done_is_refused(tmp_path: Path) -> None:
    life(tmp_path, num_train_epochs=2)
    with pytest.raises(InputError, match=r"has completed 2 epochs, team\.num_train_epochs = 1"):
        life(tmp_path, num_train_epochs=1)


def test_team_finished_and_started_again_says_the_same(tmp_path: Path) -> None:
    """Also its evaluation when only that was lost: the agents are those of the checkpoint, not untrained ones."""
    first = results(*life(tmp_path, test_samples=8))
    assert first["evaluation"]["trained"] != first["evaluation"]["untrained"]
    assert results(*life(tmp_path, test_samples=8)) == first
    for kept in list_runs(tmp_path / "runs")[0].path.glob("evaluation-*.json"):
        kept.unlink()
    assert results(*life(tmp_path, test_samples=8)) == first


def test_team_lost_updates_are_refused(tmp_path: Path) -> None:
    _, run = life(tmp_path)
    lines = (run / "updates.jsonl").read_text().splitlines(keepends=True)
    (run / "updates.jsonl").write_text("".join(lines[:2]))
    with pytest.raises(InputError, match=r"updates\.jsonl: holds 2 good rows, but the checkpoint was taken after 6"):
        life(tmp_path, num_train_epochs=3)


# What is part of a run's identity


def refused(where: Path, run: Path, **over: Any) -> str:
    here = toy_team.settings(where).model_copy(update={"resume_run": run})
    with pytest.raises(InputError) as refusal:
        life(where, here=here, num_train_epochs=3, **over)
    return str(refusal.value)


@pytest.mark.parametrize(
    ("over", "name"),
    [
        ({"temperature": 0.5}, "params.temperature"),
        ({"top_p": 0.9}, "params.top_p"),
        ({"max_new_tokens": 5}, "params.max_new_tokens"),
        ({"num_generations": 3}, "params.num_generations"),
        ({"agent_learning_rate": 1e-3}, "params.agent_learning_rate"),
        ({"discount": 0.5}, "params.discount"),
        ({"seed": 1}, "params.seed"),
    ],
)
def test_team_changed_config_is_refused_by_name(over: dict[str, Any], name: str, tmp_path: Path) -> None:
    _, run = life(tmp_path, num_train_epochs=1)
    assert name in refused(tmp_path, run, **over)


def test_team_changed_model_prompts_and_reward_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, run = life(tmp_path, num_train_epochs=1)
    assert "inputs.models" in refused(tmp_path, run, sources_=toy_team.sources(seed=1))
    with monkeypatch.context() as patch:
        patch.setattr(toy_team.LetterTask, "prompts", lambda self, item, history: [item["prompt"]] * 2)
        assert "code.task" in refused(tmp_path, run)
    with monkeypatch.context() as patch:
        patch.setattr(toy_team.LetterTask, "reward", lambda self, completions, items: [1.0] * len(items))
        assert "code.task" in refused(tmp_path, run)
    here = toy_team.settings(tmp_path).model_copy(update={"resume_run": run})
    task = toy_team.LetterTask(items=5, held_out=2)
    task.train[3]["prompt"] += "?"
    with pytest.raises(InputError, match=r"inputs\.train"):
        toy_team.train(tmp_path, task=task, here=here, **SMALL)
    ending, same = life(tmp_path, num_train_epochs=3)
    assert (same, ending.state.epoch) == (run, 3), "a refusal has harmed nothing"


def test_team_ledger_tells_each_segment_once(tmp_path: Path) -> None:
    _, run = life(tmp_path, num_train_epochs=2)
    rows = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    assert [(row["epoch"], row["env_step"]) for row in rows] == [(0, 0), (1, 10), (2, 20)]
