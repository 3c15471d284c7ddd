"""The Python API: the published example line by line, checkpoints on demand, resuming one run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import toy_team
from ratchet.core.errors import InputError
from ratchet.loops.team import TeamConfig, TeamTrainer, read_checkpoint_metadata

PROMPTS = [{"prompt": f"Write a story about number {n}:"} for n in range(4)]
CONFIG: dict[str, Any] = {
    "num_agents": 2, "num_turns": 1, "num_train_epochs": 2, "num_generations": 2, "max_new_tokens": 6,
    "temperature": 0.7, "top_p": 0.9, "top_k": 50, "agent_learning_rate": 1e-3, "logging_steps": 1,
    "rollout_buffer_size": 2, "eval_interval": 2, "eval_num_samples": 2, "test_samples": 1,
}  # fmt: skip


def length_ratio(first: Sequence[str], second: Sequence[str]) -> list[float]:
    """The published example's reward: the second answer two to three times as long as the first."""
    ratios = [len(long) / max(1, len(short)) for short, long in zip(first, second, strict=True)]
    return [1.0 if 2 <= ratio <= 3 else max(0.0, 1 - abs(ratio - 2.5) / 2.5) for ratio in ratios]


def trainer(where: Path, **over: Any) -> TeamTrainer:
    pieces: dict[str, Any] = {
        "model": toy_team.model(),
        "tokenizer": toy_team.tokenizer(),
        "reward": length_ratio,
        "train_dataset": PROMPTS[:3],
        "eval_dataset": PROMPTS[3:],
        "formatters": [lambda item: f"Short. {item['prompt']}", lambda item: f"Long. {item['prompt']}"],
        "here": toy_team.settings(where, wandb="offline"),
    }
    config = TeamConfig.model_validate(CONFIG | over.pop("config", {}))
    return TeamTrainer(config, **{**pieces, **over})


def resumed(where: Path, run: Path, **over: Any) -> TeamTrainer:
    made = trainer(where)
    pieces: dict[str, Any] = {
        "model": toy_team.model(), "tokenizer": toy_team.tokenizer(), "reward": length_ratio,
        "train_dataset": PROMPTS[:3], "eval_dataset": PROMPTS[3:], "here": made.here,
        "formatters": [lambda item: f"Short. {item['prompt']}", lambda item: f"Long. {item['prompt']}"],
    }  # fmt: skip
    return TeamTrainer.resume(run, **{**pieces, **over})


def test_trainer_published_example_trains_and_tells_every_row(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    ending = made.train()
    assert ending.state.epoch == 2
    assert ending.state.env_step == 2 * 3 * 2
    assert ending.evaluation is not None
    assert ending.evaluation["items"] == 1
    assert made.path is not None
    assert [json.loads(line)["env_step"] for line in (made.path / "updates.jsonl").read_text().splitlines()] == [
        row["env_step"] for row in ending.rows
    ]


def test_trainer_demands_deterministic_sums_because_completions_share_a_prompts_keys(tmp_path: Path) -> None:
    """Measured: two threads, both cores busy, every other pair of runs differed after eight updates without it."""
    torch.use_deterministic_algorithms(False)
    trainer(tmp_path)
    assert torch.are_deterministic_algorithms_enabled()


def test_trainer_resume_by_checkpoint_goes_on_for_two_more_epochs_as_if_never_stopped(tmp_path: Path) -> None:
    whole = trainer(tmp_path / "whole", config={"num_train_epochs": 4})
    expected = whole.train()
    first = trainer(tmp_path / "parts")
    first.train()
    assert first.path is not None
    again = resumed(tmp_path / "parts", first.path / "checkpoint-2", changes={"num_train_epochs": 4})
    ending = again.train()
    assert again.path == first.path
    for one, other in zip(ending.rows, expected.rows, strict=True):
        assert {**one, "seconds": 0, "resumed": 0} == {**other, "seconds": 0, "resumed": 0}
    assert [row["env_step"] for row in ending.rows if row["resumed"]] == [8 + 8], "the first row of the second process"
    for one, other in zip(again.session.team.policies, whole.session.team.policies, strict=True):
        pairs = zip(one.trainable().values(), other.trainable().values(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    ("over", "name"),
    [
        ({"reward": lambda first, second: [0.0] * len(first)}, "code.reward"),
        ({"train_dataset": [{"prompt": "another"}] * 3}, "inputs.train"),
        ({"formatters": None}, "code.formatters"),
        ({"model": toy_team.model(3)}, "inputs.models"),
        ({"changes": {"temperature": 0.5}}, "params.temperature"),
    ],
)
def test_trainer_resume_with_something_changed_is_refused_by_name(
    over: dict[str, Any], name: str, tmp_path: Path
) -> None:
    first = trainer(tmp_path, config={"num_train_epochs": 1})
    first.train()
    assert first.path is not None
    with pytest.raises(InputError, match=name):
        resumed(tmp_path, first.path, **{"changes": {"num_train_epochs": 2}, **over}).train()


def test_trainer_older_checkpoint_is_refused(tmp_path: Path) -> None:
    first = trainer(tmp_path)
    first.train()
    assert first.path is not None
    with pytest.raises(InputError, match="has gone on to 3"):
        resumed(tmp_path, first.path / "checkpoint-1")


def test_trainer_checkpoint_on_demand_lies_inside_an_epoch(tmp_path: Path) -> None:
    made: list[TeamTrainer] = []

    def reward(first: Sequence[str], second: Sequence[str]) -> list[float]:
        made[0].save_checkpoint()
        return length_ratio(first, second)

    made.append(trainer(tmp_path, reward=reward, config={"eval_interval": 0, "keep_last": 9}))
    made[0].train()
    assert made[0].path is not None
    taken = [read_checkpoint_metadata(path) for path in sorted((made[0].path / "checkpoints").iterdir())]
    assert [(each["epoch"], each["position"]) for each in taken] == [
        (0, 0),
        (0, 2),
        (0, 3),
        (1, 0),
        (1, 2),
        (1, 3),
        (2, 0),
    ]
    with pytest.raises(InputError, match="nothing is training"):
        made[0].save_checkpoint()


def test_trainer_metadata_is_read_without_weights(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    made.train()
    assert made.path is not None
    folder = (made.path / "checkpoint-2").resolve()
    for file in folder.glob("*.safetensors"):
        file.unlink()
    found = read_checkpoint_metadata(folder)
    assert found["trainer_class"] == "TeamTrainer"
    assert (found["epoch"], found["position"], found["env_step"]) == (2, 0, 12)
    assert found["run_id"] == made.path.name
    assert set(found["wandb"]) == {"id", "project", "entity"}
    text = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(text.replace('"epoch":2', '"epoch":3'))
    with pytest.raises(InputError, match="does not match its own sha256"):
        read_checkpoint_metadata(folder)


def test_trainer_several_turns_need_a_transition_and_use_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="num_turns is 2, but there is no external_transition"):
        trainer(tmp_path, config={"num_turns": 2})
    seen: list[dict[str, Any]] = []

    def external_transition(**told: Any) -> list[str]:
        seen.append(told)
        return [f"Again: {text}" for text in told["agent_completions"]]

    trainer(tmp_path, config={"num_turns": 2, "num_train_epochs": 1}, external_transition=external_transition).train()
    assert {
        "prompt",
        "agent_completions",
        "num_agents",
        "prompt_history_per_agent",
        "response_history_per_agent",
    } == set(seen[0])
    assert seen[0]["prompt"] == PROMPTS[3]["prompt"], "the look at held-out items comes first"


def test_trainer_agents_of_several_models_and_their_saving(tmp_path: Path) -> None:
    pair = [toy_team.model(1), toy_team.model(2)]
    made = trainer(tmp_path, model=None, agents=pair, config={"num_train_epochs": 1})
    made.train()
    made.save_model(tmp_path / "out")
    for agent, live in enumerate(made.session.team.policies):
        again = AutoModelForCausalLM.from_pretrained(tmp_path / f"out/agent-{agent}")
        for name, tensor in live.trainable().items():
            assert torch.equal(dict(again.named_parameters())[name], tensor)


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"model": None}, "needs model or agents"),
        ({"agents": [1]}, "needs model or agents, not both"),
        ({"model": None, "agents": [toy_team.model()]}, "1 agents, but num_agents is 2"),
        ({"tokenizer": None}, "live models need their tokenizer"),
        ({"model": "no/such/folder"}, "is no causal LM"),
        ({"formatters": [lambda item: "x"]}, "1 for 2 agents"),
    ],
)
def test_trainer_wrong_pieces_are_told(over: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        trainer(tmp_path, **over)
