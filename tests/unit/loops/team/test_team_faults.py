"""What goes wrong in a task, a model or a config is told in one line, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import toy_team
from ratchet.core.errors import InputError
from ratchet.core.rundir import list_runs
from ratchet.loops.team.team import Source

SMALL: dict[str, Any] = {"num_train_epochs": 2, "max_new_tokens": 4, "num_generations": 2, "eval_interval": 0,
                         "test_samples": 1}  # fmt: skip


def task(reward: Callable[..., Any] | None = None, **over: Any) -> Any:
    made = toy_team.LetterTask(items=4, held_out=1)
    for name, value in {**({"reward": reward} if reward else {}), **over}.items():
        setattr(made, name, value)
    return made


def after(calls: int, bad: Callable[[list[list[str]], Any], Any]) -> Callable[..., Any]:
    """A reward that is well for so many calls and then `bad`."""
    plain, count = toy_team.LetterTask().reward, [0]

    def reward(completions: list[list[str]], items: Any) -> Any:
        count[0] += 1
        return plain(completions, items) if count[0] <= calls else bad(completions, items)

    return reward


def broken(completions: Any, items: Any) -> list[float]:
    raise KeyError("answer")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (lambda c, i: [float("nan")] * len(i), r"letters: reward at turn 0 of items 2 to 3: gave nan for \["),
        (lambda c, i: [float("inf")] * len(i), "gave inf for"),
        (lambda c, i: [1.0], "gave 1 numbers for 4 joint actions"),
        (lambda c, i: None, "gave None"),
        (lambda c, i: ["much"] * len(i), "could not convert string to float: 'much'"),
        (broken, r"raised KeyError: 'answer' \(.*test_team_faults\.py:\d+\)"),
    ],
)
def test_team_reward_gone_wrong_is_told_and_the_run_goes_on_when_it_is_mended(
    bad: Any, message: str, tmp_path: Path
) -> None:
    """The fault comes in the second epoch; the first one's checkpoint is still there."""
    with pytest.raises(InputError, match=message):
        toy_team.train(tmp_path, task=task(after(4, bad)), **SMALL)
    run = list_runs(tmp_path / "runs")[0]
    assert (run.state, run.steps) == ("stopped", 8)
    assert (run.path / "checkpoint-1").is_dir()


def test_team_reward_mended_outside_its_code_goes_on_from_the_last_checkpoint(tmp_path: Path) -> None:
    switch = tmp_path / "broken"
    switch.touch()

    def reward(completions: list[list[str]], items: Any) -> list[float]:
        bad = switch.exists() and any(item["prompt"].startswith("say 2") for item in items)
        return [float("nan") if bad else len(text) / 4 for text in completions[0]]

    with pytest.raises(InputError, match="gave nan"):
        toy_team.train(tmp_path, task=task(reward), **SMALL)
    switch.unlink()
    ending, path = toy_team.train(tmp_path, task=task(reward), **SMALL)
    assert ending.state.epoch == 2
    assert [run.path for run in list_runs(tmp_path / "runs")] == [path]


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (lambda item, history: ["one"], r"prompts at train item 0: gave \['one'\], not 2 texts"),
        (lambda item, history: [1, 2], "not 2 texts"),
        (lambda item, history: item["question"], "raised KeyError: 'question'"),
        (lambda item, history: ["", "b"], "agent 0, train item 0: the prompt '' has no token"),
        (lambda item, history: ["a" * 125, "b"], "agent 0, train item 0: the prompt has 125 tokens.*context of 128"),
    ],
)
def test_team_wrong_prompts_are_told_before_anything_is_generated(prompts: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        toy_team.train(tmp_path, task=task(prompts=prompts), **SMALL)
    assert not list_runs(tmp_path / "runs")


def test_team_prompt_that_outgrows_the_context_in_a_later_turn_is_told(tmp_path: Path) -> None:
    grown = task(prompts=lambda item, history: ["a" * (10 + 120 * len(history))] * 2)
    with pytest.raises(InputError, match=r"agent 0, item 0, turn 1: the prompt has 130 tokens"):
        toy_team.train(tmp_path, task=grown, **SMALL, num_turns=2)


def test_team_transition_that_gives_too_few_prompts_is_told(tmp_path: Path) -> None:
    wrong = task(transition=lambda item, joint, turn, history: ["one"])
    with pytest.raises(InputError, match=r"letters: transition at item 0, turn 0: gave \['one'\], not 2 texts"):
        toy_team.train(tmp_path, task=wrong, **SMALL, num_turns=2)


def test_team_empty_completions_are_rewarded_as_empty_texts_and_learnt_from(tmp_path: Path) -> None:
    """A model that always ends at once."""
    seen: list[str] = []

    def reward(completions: list[list[str]], items: Any) -> list[float]:
        seen.extend(text for texts in completions for text in texts)
        return [float(place) for place, _ in enumerate(items)]

    live = toy_team.model()
    live.generation_config.eos_token_id = list(range(260))
    made = Source(live, toy_team.tokenizer())
    ending, _ = toy_team.train(tmp_path, task=task(reward), sources_=[made, made], **SMALL)
    assert {len(text) for text in seen} <= {0, 1}
    assert ending.rows[0]["agent0_completion_length"] == 1
    assert ending.rows[0]["loss"] is not None


def test_team_two_tokenizers_that_differ_understand_each_other_as_text(tmp_path: Path) -> None:
    """Each agent reads and writes with its own; what goes between them is text."""
    told: list[str] = []

    def prompts(item: Any, history: Any) -> list[str]:
        told.extend(turn.completions[0] for turn in history)
        return [f"say: {''.join(turn.completions[1] for turn in history)}"] * 2

    pair = [Source(toy_team.model(n), toy_team.tokenizer(shifted=bool(n))) for n in range(2)]
    ending, _ = toy_team.train(tmp_path, task=task(prompts=prompts), sources_=pair, **SMALL, num_turns=2)
    assert ending.state.epoch == 2
    assert told
    with pytest.raises(InputError, match=r"team\.shared_weights: true with several models"):
        toy_team.train(tmp_path, sources_=pair, **SMALL, shared_weights=True)


def test_team_without_items_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="letters: has no item to train on"):
        toy_team.train(tmp_path, task=task(train=[]), **SMALL)


def test_team_without_held_out_items_trains_and_says_nothing_of_them(tmp_path: Path) -> None:
    ending, _ = toy_team.train(tmp_path, task=task(evaluation=[]), **{**SMALL, "eval_interval": 1})
    assert ending.evaluation is None
    assert all(row["eval_reward"] is None for row in ending.rows)
