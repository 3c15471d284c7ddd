"""A task's own code at arm's length: what it gives is checked, what it raises says where.

Refuses to know models and how a reward is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ratchet.core.errors import InputError
from ratchet.loops.own_code import called
from ratchet.loops.team.tasks.protocol import Item, Task, Turn, has_transition


def prompts_of(task: Task, item: Item, history: Sequence[Turn], agents: int, where: str) -> list[str]:
    """The prompts of the next turn, one per agent. Raises InputError."""
    at = f"{task.name}: prompts at {where}"
    return _checked_prompts(called(at, task.prompts, item, history), agents, at)


def next_prompts(task: Task, item: Item, history: Sequence[Turn], agents: int, where: str) -> list[str] | None:
    """The prompts after `history`, or None when the episode is over: by the task's transition if it has one."""
    if not has_transition(task):
        return prompts_of(task, item, history, agents, where)
    at, joint, turn = f"{task.name}: transition at {where}", list(history[-1].completions), len(history) - 1
    found = called(at, task.transition, item, joint, turn, history)
    return None if found is None else _checked_prompts(found, agents, at)


def rewards_of(task: Task, completions: list[list[str]], items: list[Item], where: str) -> list[float]:
    """One finite number per joint action. Raises InputError when the reward raises, or gives anything else."""
    name = f"{task.name}: reward at {where}"
    found: Any = called(name, task.reward, completions, items)
    try:
        numbers = [float(value) for value in found]
    except (TypeError, ValueError) as error:
        raise InputError(name, f"gave {_short(found)}: {error}", "return a list of numbers") from None
    if len(numbers) != len(items):
        what = f"gave {len(numbers)} numbers for {len(items)} joint actions"
        raise InputError(name, what, "return one number for each place of the lists it is given")
    for place, number in enumerate(numbers):
        if not math.isfinite(number):
            said = [texts[place] for texts in completions]
            raise InputError(name, f"gave {number} for {_short(said)}", "return a finite number for every text")
    return numbers


def _checked_prompts(found: Any, agents: int, where: str) -> list[str]:
    if not isinstance(found, list | tuple) or len(found) != agents or not all(isinstance(one, str) for one in found):
        raise InputError(where, f"gave {_short(found)}, not {agents} texts", "return a list with one prompt per agent")
    return list(found)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
