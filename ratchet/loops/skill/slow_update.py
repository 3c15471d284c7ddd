"""Phase slow_update: from the second epoch, what the epoch changed is looked at pair by pair, and guidance is written.

The guidance goes into a protected block, where a step's edits cannot reach it, and passes the gate like every change
(the published code forces it in). Refuses to know how guidance is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.core.seeds import Permutation, derive
from ratchet.loops.skill.records import Memory, Optimizer, Pair, Target, Task, Usage
from ratchet.loops.skill.rollout import Scorer, rollout
from ratchet.loops.skill.update import with_block


@dataclass(frozen=True)
class SlowUpdate:
    """The candidate with its block, and what the agent and the optimizer took."""

    candidate: str
    rollout: Usage
    analyst: Usage


def sample_tasks(tasks: Sequence[Task], count: int, seed: int, epoch: int) -> list[Task]:
    """`count` tasks (all, when there are fewer) that `epoch` names."""
    order = Permutation(len(tasks), derive(seed, "slow_update", epoch))
    return [tasks[order[place]] for place in range(min(count, len(tasks)))]


def slow_update(
    memory: Memory, previous: str, tasks: Sequence[Task], target: Target, optimizer: Optimizer, score: Scorer
) -> SlowUpdate:
    """Compare `tasks` under `previous` and under the present document, and write the guidance that follows."""
    before, after = rollout(previous, tasks, target, score), rollout(memory.skill, tasks, target, score)
    pairs = [Pair(old, new) for old, new in zip(before.rows, after.rows, strict=True)]
    guidance = optimizer.guide(memory, previous, pairs)
    candidate = with_block(memory.skill, "slow_update", guidance.value)
    return SlowUpdate(candidate, before.usage + after.usage, guidance.usage)
