"""Phase rollout: the frozen agent answers a batch under a document, and every answer is scored.

Refuses to know how an agent is reached. An agent that cannot be reached raises; no score stands for a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ratchet.core.seeds import Permutation, derive
from ratchet.loops.skill.records import Row, Target, Task, Usage
from ratchet.loops.skill.scoring import Scores, mean

Scorer = Callable[[Task, str], Row]


@dataclass(frozen=True)
class Rollout:
    """Rows in the order of the tasks, and what they took."""

    rows: tuple[Row, ...]
    usage: Usage

    @property
    def scores(self) -> Scores:
        """Means over the rows."""
        return mean(self.rows)


def batch(tasks: Sequence[Task], seed: int, epoch: int, step_in_epoch: int, size: int) -> list[Task]:
    """The tasks of one step: places (step_in_epoch − 1)·size onwards of the epoch's own order, each task once a pass.

    `epoch` and `step_in_epoch` count from 1. The last batch of an epoch may be smaller.
    """
    order = Permutation(len(tasks), derive(seed, "epoch", epoch))
    start = (step_in_epoch - 1) * size
    return [tasks[order[place]] for place in range(start, min(start + size, len(tasks)))]


def rollout(skill: str, tasks: Sequence[Task], target: Target, score: Scorer, sample: int = 0) -> Rollout:
    """Ask `target` every task under `skill` and score what it says. Raises InfrastructureError."""
    answers = target.answer(skill, tasks, sample)
    rows = tuple(score(task, answer.text) for task, answer in zip(tasks, answers, strict=True))
    return Rollout(rows, sum((answer.usage for answer in answers), Usage()))
