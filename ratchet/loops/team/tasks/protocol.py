"""What a cooperative task is: items to train and to evaluate on, a prompt for each agent, one reward for what all said.

Refuses to know models, tokens and training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeGuard

Item = Mapping[str, Any]
TURNS = "turns"
"""Key under which an item handed to `reward` carries the earlier turns of its branch."""


@dataclass(frozen=True)
class Turn:
    """One finished turn of one branch: prompt and completion of each agent, and the reward of the joint action."""

    prompts: tuple[str, ...]
    completions: tuple[str, ...]
    reward: float


class Sizes(NamedTuple):
    """Items to train on and to evaluate on; 0 takes all that the task has left."""

    train: int
    evaluation: int


class Task(Protocol):
    """A task. It may also have a transition: `MultiTurn`."""

    name: str
    train: list[dict[str, Any]]
    evaluation: list[dict[str, Any]]

    def prompts(self, item: Item, history: Sequence[Turn]) -> list[str]:
        """One prompt per agent for `item`, given the earlier turns of this branch."""
        ...

    def reward(self, completions: list[list[str]], items: list[Item]) -> list[float]:
        """One number for each joint action: `completions[agent][n]`, all lists of one length, item `items[n]`.

        After the first turn the items come from `at_turn`.
        """
        ...


class MultiTurn(Task, Protocol):
    """A task of several turns."""

    def transition(self, item: Item, joint: Sequence[str], turn: int, history: Sequence[Turn]) -> list[str] | None:
        """What all agents said in turn number `turn` (from 0; the last of `history`) gives the next prompts, or None
        when the episode is over."""
        ...


def has_transition(task: Task) -> TypeGuard[MultiTurn]:
    """Whether `task` knows what comes after a turn."""
    return callable(getattr(task, "transition", None))


def at_turn(item: Item, history: Sequence[Turn]) -> Item:
    """`item` as `reward` sees it after the turns `history`: with them under the key `turns`, when there are any."""
    return {**item, TURNS: tuple(history)} if history else item
