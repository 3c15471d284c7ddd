"""Trees: who is asked what, what is counted, when a branch ends; by hand, over two agents and two turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

import toy_team
from ratchet.loops.team.buffer import group_of
from ratchet.loops.team.evaluation import by_item, compared, estimate, evaluate
from ratchet.loops.team.rollout import Node, rollout, training_plan
from ratchet.loops.team.tasks.protocol import TURNS, Turn
from ratchet.loops.team.team import Team


class Told(toy_team.LetterTask):
    """Keeps what it is asked; the reward is the place of the joint action, so that returns can be worked out."""

    def __init__(self, **over: Any) -> None:
        super().__init__(**over)
        self.histories: list[tuple[Turn, ...]] = []
        self.items_seen: list[Mapping[str, Any]] = []
        self.calls = 0

    def prompts(self, item: Mapping[str, Any], history: Sequence[Turn]) -> list[str]:
        self.histories.append(tuple(history))
        return super().prompts(item, history)

    def reward(self, completions: list[list[str]], items: list[Mapping[str, Any]]) -> list[float]:
        self.calls += 1
        self.items_seen += items
        return [float(place) for place, _ in enumerate(items)]


def grown(task: Any = None, items: int = 1, epoch: int = 0, **over: Any) -> tuple[list[Node], Any, Team]:
    config = toy_team.config(num_generations=2, num_turns=2, max_new_tokens=4, **over)
    made = task or Told()
    team = Team(toy_team.sources(config.num_agents), config)
    return rollout(team, made, list(enumerate(made.train[:items])), training_plan(config, epoch)), made, team


def test_rollout_aligned_has_one_child_per_joint_action_with_its_history() -> None:
    (root,), task, _ = grown()
    assert [node.path for node in root.walk()] == [(), (0,), (1,)]
    for place, child in enumerate(root.children):
        assert child is not None
        (turn,) = child.history
        assert turn.completions == tuple(said.texts[place] for said in root.said)
        assert turn.reward == root.rewards[place]
        assert child.prompts == toy_team.LetterTask().prompts(root.item, child.history)
    assert task.calls == 2, "one call of the reward a turn, for all nodes"


def test_rollout_returns_discount_the_mean_of_the_children() -> None:
    (root,), _, _ = grown(discount=0.5)
    first, second = root.children
    assert first is not None
    assert second is not None
    assert (root.rewards, first.rewards, second.rewards) == ([0, 1], [0, 1], [2, 3])
    assert (first.returns, second.returns) == ([0, 1], [2, 3])
    assert root.returns == [0 + 0.5 * 0.5, 1 + 0.5 * 2.5]
    (undiscounted,), _, _ = grown()
    assert undiscounted.returns == [0.5, 3.5], "the published return"


def test_rollout_cross_rewards_every_pair_and_sums_them_for_a_completion() -> None:
    (root,), _, _ = grown(joint_mode="cross")
    assert root.combos == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len(root.children) == 4
    group = group_of(root)
    assert group.shares[0].returns == (root.returns[0] + root.returns[1], root.returns[2] + root.returns[3])
    assert group.shares[1].returns == (root.returns[0] + root.returns[2], root.returns[1] + root.returns[3])


def test_rollout_early_termination_ends_the_branch_above_the_threshold() -> None:
    (root,), _, _ = grown(early_termination_threshold=0.4)
    assert root.rewards == [0, 1]
    assert root.children == []
    assert root.returns == [0, 1]
    (on,), _, _ = grown(early_termination_threshold=0.5)
    assert len(on.children) == 2, "equal is not above"


def test_rollout_transition_that_ends_an_episode_leaves_no_child() -> None:
    task = Told()
    seen: list[tuple[Any, ...]] = []

    def transition(item: Any, joint: Any, turn: int, history: Any) -> list[str] | None:
        seen.append((list(joint), turn, len(history)))
        return None if len(seen) == 1 else ["go", "on"]

    task.transition = transition  # type: ignore[attr-defined]
    (root,), _, _ = grown(task)
    assert root.children[0] is None
    assert root.children[1] is not None
    assert root.children[1].prompts == ["go", "on"]
    assert root.returns[0] == 0
    assert [(turn, length) for _, turn, length in seen] == [(0, 1), (0, 1)]
    assert seen[0][0] == [said.texts[0] for said in root.said]


def test_rollout_reward_sees_the_earlier_turns_with_the_item() -> None:
    _, task, _ = grown()
    assert [len(item.get(TURNS, ())) for item in task.items_seen] == [0, 0, 1, 1, 1, 1]


def test_rollout_of_several_items_equals_that_of_each_alone() -> None:
    together, _, _ = grown(toy_team.LetterTask(), items=3)
    task = toy_team.LetterTask()
    config = toy_team.config(num_generations=2, num_turns=2, max_new_tokens=4)
    team = Team(toy_team.sources(), config)
    for place, root in enumerate(together):
        (alone,) = rollout(team, task, [(place, task.train[place])], training_plan(config, 0))
        for one, other in zip(root.walk(), alone.walk(), strict=True):
            assert [said.texts for said in one.said] == [said.texts for said in other.said]


def test_rollout_of_another_epoch_draws_anew() -> None:
    first, _, _ = grown(items=2)
    second, _, _ = grown(items=2, epoch=1)
    assert [n.said for n in first] != [n.said for n in second]


# Evaluation


def test_evaluate_gives_each_sample_the_sum_of_its_own_episode() -> None:
    config = toy_team.config(num_turns=2, max_new_tokens=4)
    returns = evaluate(Team(toy_team.sources(), config), Told(), 2, 3)
    assert returns == [[0 + 0, 1 + 1, 2 + 2], [3 + 3, 4 + 4, 5 + 5]], "places of both turns' calls"


def test_evaluate_has_its_own_stream_and_repeats() -> None:
    config = toy_team.config(max_new_tokens=6)
    team, task = Team(toy_team.sources(), config), toy_team.LetterTask()
    first = evaluate(team, task, 4, 2)
    rollout(team, task, list(enumerate(task.train)), training_plan(config, 0))
    assert evaluate(team, task, 4, 2) == first
    assert evaluate(team, task, 2, 2) == first[:2], "the first items, whatever their company"
    task.evaluation = task.train
    heard = [said.texts for root in rollout(team, task, [(0, task.train[0])], training_plan(config, 0)) for said in
             root.said]  # fmt: skip
    assert heard


def test_estimate_interval_covers_the_mean_as_often_as_it_says() -> None:
    import numpy as np

    generator = np.random.default_rng(0)
    hits = 0
    for _ in range(100):
        found = estimate(list(generator.normal(1.0, 2.0, 64)), 0)
        hits += found.low <= 1.0 <= found.high
    assert 88 <= hits <= 99
    assert estimate([2.0, 2.0], 0).public() == {"mean": 2.0, "low": 2.0, "high": 2.0}


def test_compared_is_paired_over_items() -> None:
    untrained = [[float(n), float(n)] for n in range(40)]
    trained = [[value + 0.5 for value in row] for row in untrained]
    found = compared(untrained, trained, 0)
    assert found["rise"] == pytest.approx({"mean": 0.5, "low": 0.5, "high": 0.5})
    assert found["untrained"]["high"] - found["untrained"]["low"] > 5, "unpaired it would drown"
    assert (found["items"], found["samples"]) == (40, 2)
    assert by_item(untrained)[3] == 3.0
