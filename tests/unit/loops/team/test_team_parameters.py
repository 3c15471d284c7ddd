"""Every knob changes what it says it changes, and only what it may; the published defaults are kept but where said."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import toy_team
from ratchet.core.errors import InputError
from ratchet.loops.team import generation, likelihood, session
from ratchet.loops.team.models import load_sources
from ratchet.loops.team.parameters import PORTABLE, TeamConfig, TeamParams
from ratchet.params import echo, validate

BASE: dict[str, Any] = {
    "num_train_epochs": 1, "num_generations": 3, "max_new_tokens": 5, "test_samples": 1, "eval_interval": 2,
    "eval_num_samples": 1, "kept_items": 1, "num_turns": 1,
}  # fmt: skip
TWO_TURNS = {"num_turns": 2}


@dataclasses.dataclass
class Seen:
    """One small training, and what it did on the way."""

    ending: Any
    run: Path
    live: Any
    said: list[str]
    begins: int
    passes: int

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self.ending.rows

    def all(self, name: str) -> list[Any]:
        return [row[name] for row in self.rows]

    @property
    def samples(self) -> list[dict[str, Any]]:
        return [sample for row in self.rows for sample in row["samples"]]

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in (self.run / "checkpoints").rglob("*.safetensors"))

    def bytes(self, name: str) -> int:
        return next(self.run.glob(f"checkpoint-*/{name}")).stat().st_size

    @property
    def segments(self) -> int:
        return len((self.run / "ledger.jsonl").read_text().splitlines())

    @property
    def moved(self) -> float:
        """How far the first agent's weights went."""
        start = dict(toy_team.model().named_parameters())
        now = self.live.team.weights(0)
        return sum(float((now[name].float() - start[name]).norm()) for name in now if name in start)


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Seen]:
    count = [0]

    def train(**over: Any) -> Seen:
        count[0] += 1
        where, begins, passes, said = tmp_path / str(count[0]), [0], [0], list[str]()
        write, passed = generation._write, likelihood._batch  # pyright: ignore[reportPrivateUsage]

        def counted(holder: list[int], function: Any) -> Any:
            def call(*arguments: Any) -> Any:
                holder[0] += 1
                return function(*arguments)

            return call

        with monkeypatch.context() as patch:
            patch.setattr(generation, "_write", counted(begins, write))
            patch.setattr(likelihood, "_batch", counted(passes, passed))
            here, made = toy_team.settings(where), toy_team.config(**{**BASE, **over})
            task = toy_team.LetterTask(items=4, held_out=2, agents=made.num_agents)
            live = session.make_session(made, toy_team.sources(made.num_agents), task, here)
            with session.open_session(live, here) as run:
                ending = session.Driver(live, run, here, said.append).drive()
        return Seen(ending, run.path, live, said, begins[0], passes[0])

    return train


Case = tuple[dict[str, Any], dict[str, Any], Callable[[Seen], Any], Callable[[Any, Any], bool]]
CASES: dict[str, Case] = {
    "num_agents": ({}, {"num_agents": 3}, lambda s: "agent2_loss" in s.rows[0], lambda a, b: not a and b),
    "num_turns": ({}, TWO_TURNS, lambda s: s.ending.state.env_step, lambda a, b: (a, b) == (12, 12 + 36)),
    "num_train_epochs": ({}, {"num_train_epochs": 2}, lambda s: s.ending.state.epoch, lambda a, b: (a, b) == (1, 2)),
    "num_generations": ({}, {"num_generations": 2}, lambda s: s.all("env_step"),
                        lambda a, b: (a, b) == ([6, 12], [4, 8])),
    "max_new_tokens": ({}, {"max_new_tokens": 1}, lambda s: max(s.all("agent0_completion_length")),
                       lambda a, b: a > 1 and b == 1),
    "temperature": ({}, {"temperature": 1e-6}, lambda s: sum(s.all("skipped_updates")), lambda a, b: a < b),
    "top_p": ({}, {"top_p": 1e-6}, lambda s: sum(s.all("skipped_updates")), lambda a, b: a < b),
    "top_k": ({}, {"top_k": 1}, lambda s: sum(s.all("skipped_updates")), lambda a, b: a < b),
    "agent_learning_rate": ({}, {"agent_learning_rate": 1e-5}, lambda s: s.moved, lambda a, b: a > 100 * b > 0),
    "logging_steps": ({"eval_interval": 0}, {"logging_steps": 50}, lambda s: sum("epoch" in x for x in s.said),
                      lambda a, b: (a, b) == (2, 1)),
    "discount": (TWO_TURNS, {"discount": 0.0}, lambda s: s.rows[0]["return_mean"] - s.rows[0]["reward_mean"],
                 lambda a, b: a > 0 and b == 0),
    "joint_mode": ({}, {"joint_mode": "cross"}, lambda s: s.ending.state.env_step, lambda a, b: (a, b) == (12, 36)),
    "early_termination_threshold": (TWO_TURNS, {"early_termination_threshold": -0.2}, lambda s: s.ending.state.env_step,
                                    lambda a, b: (a, b) == (48, 12)),
    "eval_interval": ({}, {"eval_interval": 4}, lambda s: [row["eval_reward"] is not None for row in s.rows],
                      lambda a, b: (a, b) == ([True, True], [True, False])),
    "eval_num_samples": ({}, {"eval_num_samples": 0}, lambda s: s.all("eval_reward"),
                         lambda a, b: b == [None, None] != a),
    "rollout_buffer_size": ({}, {"rollout_buffer_size": 1}, lambda s: len(s.rows), lambda a, b: (a, b) == (2, 4)),
    "train_batch_size": ({}, {"train_batch_size": 1},
                         lambda s: sum(s.all("optimizer_steps") + s.all("skipped_updates")),
                         lambda a, b: (a, b) == (4, 8)),
    "advantage_normalization": ({}, {"advantage_normalization": False}, lambda s: s.rows[0]["agent0_grad_norm"],
                                lambda a, b: a != b),
    "advantage_mode": ({"advantage_normalization": False}, {"advantage_mode": "rloo"},
                       lambda s: s.rows[0]["advantage_std"], lambda a, b: b == pytest.approx(1.5 * a)),
    "reference_kl_enabled": ({}, {"reference_kl_enabled": True}, lambda s: s.rows[-1]["kl"],
                             lambda a, b: a is None and b > 0),
    "reference_kl_coef": ({"reference_kl_enabled": True}, {"reference_kl_coef": 100.0},
                          lambda s: s.rows[-1]["advantage_std"], lambda a, b: b > a),
    "seed": ({}, {"seed": 1}, lambda s: [sample["completions"] for sample in s.samples], lambda a, b: a != b),
    "shared_weights": ({}, {"shared_weights": True}, lambda s: set(s.files),
                       lambda a, b: len(a) == 4 and b == {"model-0.safetensors", "optimizer-0.safetensors"}),
    "lora": ({}, {"lora": {"r": 2}}, lambda s: list(s.live.team.weights(0)),
             lambda a, b: not any("lora" in n for n in a) and all("lora" in n for n in b)),
    "chat_template": ({}, {"chat_template": True}, lambda s: s.rows[0]["agent0_loss"], lambda a, b: a != b),
    "stop": ({}, {"stop": "e"}, lambda s: s.live.team.codecs[0].ends, lambda a, b: len(b) > len(a)),
    "max_grad_norm": ({}, {"max_grad_norm": 1e-9}, lambda s: s.live.team.moments(0)["model.norm.weight.exp_avg"].norm(),
                      lambda a, b: float(a) > 1e3 * float(b)),
    "test_samples": ({}, {"test_samples": 3}, lambda s: s.ending.evaluation["samples"], lambda a, b: (a, b) == (1, 3)),
    "kept_items": ({}, {"kept_items": 3}, lambda s: len(s.samples), lambda a, b: (a, b) == (1, 3)),
    "generation_rows": ({}, {"generation_rows": 1}, lambda s: s.begins, lambda a, b: b > 2 * a),
    "micro_batch_tokens": ({}, {"micro_batch_tokens": 8}, lambda s: s.passes, lambda a, b: b > a),
    "compact_moments": ({}, {"compact_moments": False}, lambda s: s.bytes("optimizer-0.safetensors"),
                        lambda a, b: a < 0.6 * b),
    "checkpoint_interval": ({"num_train_epochs": 4}, {"checkpoint_interval": 4},
                            lambda s: s.segments, lambda a, b: (a, b) == (5, 2)),
    "checkpoint_seconds": ({}, {"checkpoint_seconds": 1e-9},
                           lambda s: s.segments, lambda a, b: (a, b) == (2, 4)),
    "keep_last": ({"num_train_epochs": 4}, {"keep_last": 1}, lambda s: len(list(s.run.glob("checkpoint-*"))),
                  lambda a, b: (a, b) == (2, 1)),
}  # fmt: skip
ELSEWHERE = {
    "external_prompt_passthrough": "test_external_prompt_passthrough_leaves_formatters_out",
    "dtype": "test_dtype_is_that_of_models_loaded_by_name",
}


def test_every_field_has_a_case() -> None:
    assert set(CASES) | set(ELSEWHERE) == set(TeamConfig.model_fields)
    assert all(name in globals() for name in ELSEWHERE.values())


@pytest.mark.parametrize("field", CASES)
def test_field_changes_what_it_says(field: str, seen: Callable[..., Seen]) -> None:
    common, change, probe, expected = CASES[field]
    before, after = probe(seen(**common)), probe(seen(**{**common, **change}))
    assert expected(before, after), (before, after)


@pytest.mark.parametrize("field", ["generation_rows", "micro_batch_tokens"])
def test_speed_knobs_change_results_by_rounding_alone(field: str, seen: Callable[..., Seen]) -> None:
    common, change, *_ = CASES[field]
    one, other = (seen(**{**common, **more}).live.team.weights(0) for more in ({}, change))
    assert all(torch.allclose(one[name], other[name], atol=2e-3) for name in one)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dtype_is_that_of_models_loaded_by_name(dtype: str, tmp_path: Path) -> None:
    folder = str(toy_team.save(tmp_path / "toy"))
    config = toy_team.config(dtype=dtype, num_train_epochs=1, num_turns=1, eval_interval=0, max_new_tokens=3)
    sources = load_sources([folder], 1, dtype, "cpu", toy_team.settings(tmp_path))
    assert {p.dtype for p in sources[0].model.parameters()} == {getattr(torch, dtype)}
    ending, _ = toy_team.train(tmp_path, sources_=sources * 2, **config.model_dump(mode="json"))
    assert ending.state.trained


def test_external_prompt_passthrough_leaves_formatters_out() -> None:
    from ratchet.loops.team.tasks.own import TransitionTask
    from ratchet.loops.team.tasks.protocol import Turn

    def transition(**told: Any) -> list[str]:
        return ["next"] * told["num_agents"]

    def formatter(item: Any) -> str:
        return f"<{item['prompt']}>"

    found = []
    for passthrough in (False, True):
        task = TransitionTask(
            len, [], [], agents=2, transition=transition, passthrough=passthrough, formatters=formatter
        )
        found.append(task.transition({"prompt": "p"}, ["a", "b"], 0, [Turn(("p", "p"), ("a", "b"), 0.0)]))
    assert found == [["<next>", "<next>"], ["next", "next"]]


PUBLISHED = {
    "num_train_epochs": 20, "agent_learning_rate": 5e-6, "logging_steps": 50, "num_agents": 2, "num_generations": 4,
    "max_new_tokens": 256, "temperature": 0.6, "top_p": 0.6, "top_k": 50, "num_turns": 2, "discount": 1.0,
    "joint_mode": "aligned", "external_prompt_passthrough": False, "eval_interval": 16, "eval_num_samples": 4,
    "rollout_buffer_size": 2, "train_batch_size": None, "advantage_normalization": True, "advantage_mode": "mean",
    "reference_kl_enabled": False, "reference_kl_coef": 0.1,
}  # fmt: skip


def test_defaults_are_the_published_ones_but_early_termination() -> None:
    """The published −0.2 ends every branch whose mean reward is not below it."""
    config = TeamConfig.model_validate({})
    assert {name: getattr(config, name) for name in PUBLISHED} == PUBLISHED
    assert config.early_termination_threshold is None
    assert config.batch_nodes == 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_generations": 1}, "num_generations"),
        ({"joint_mode": "crossed"}, "joint_mode"),
        ({"advantage_mode": "best"}, "advantage_mode"),
        ({"temperature": 0}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"num_turn": 1}, "did you mean 'num_turns'"),
        ({"parallel_training": "mp"}, "unknown key 'team.parallel_training'"),
    ],
)
def test_wrong_values_are_told_by_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        validate(values, "team", TeamConfig)


def test_params_name_one_task_or_its_data() -> None:
    data = {"reward": "m:f", "train": "a.jsonl", "evaluation": "b.jsonl"}
    assert TeamParams.model_validate({}).task is not None
    assert TeamParams.model_validate({"task": None, "data": data}).data is not None
    for wrong in ({"data": data}, {"task": None}):
        with pytest.raises(InputError, match="task and data"):
            validate(wrong, "team", TeamParams)


def test_params_identity_leaves_out_what_may_change_and_what_is_hashed_elsewhere() -> None:
    params = TeamParams.model_validate({})
    defining, portable = params.defining(), params.portable()
    assert set(portable) == set(PORTABLE)
    assert not set(defining) & {*PORTABLE, "model", "task", "data", "publish_agents", "train_items", "eval_items"}
    assert set(defining) | set(portable) == set(TeamConfig.model_fields)
    assert TeamConfig.model_validate({**defining, **portable}).temperature == params.temperature
    assert "team.num_turns = 2  (default)" in echo(params, "team")
