"""A task's own code at arm's length: what it gives is checked, what it raises says where.

Refuses to know models and how a reward is used.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from ratchet.core.errors import InputError
from ratchet.loops.team.tasks.protocol import Item, Task, Turn, has_transition


def prompts_of(task: Task, item: Item, history: Sequence[Turn], agents: int, where: str) -> list[str]:
    """The prompts of the next turn, one per agent. Raises InputError."""
    return _checked_prompts(
        _called(task, "prompts", where, task.prompts, item, history), task, "prompts", agents, where
    )


def next_prompts(task: Task, item: Item, history: Sequence[Turn], agents: int, where: str) -> list[str] | None:
    """The prompts after `history`, or None when the episode is over: by the task's transition if it has one."""
    if not has_transition(task):
        return prompts_of(task, item, history, agents, where)
    joint, turn = list(history[-1].completions), len(history) - 1
    found = _called(task, "transition", where, task.transition, item, joint, turn, history)
    return None if found is None else _checked_prompts(found, task, "transition", agents, where)


def rewards_of(task: Task, completions: list[list[str]], items: list[Item], where: str) -> list[float]:
    """One finite number per joint action. Raises InputError when the reward raises, or gives anything else."""
    found: Any = _called(task, "reward", where, task.reward, completions, items)
    name = f"{task.name}: reward at {where}"
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


def _called(task: Task, part: str, where: str, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        what = f"raised {type(error).__name__}: {error} ({frame.filename}:{frame.lineno})"
        raise InputError(f"{task.name}: {part} at {where}", what, "mend it and run again: the run goes on") from error


def _checked_prompts(found: Any, task: Task, part: str, agents: int, where: str) -> list[str]:
    if not isinstance(found, list | tuple) or len(found) != agents or not all(isinstance(one, str) for one in found):
        what = f"gave {_short(found)}, not {agents} texts"
        raise InputError(f"{task.name}: {part} at {where}", what, "return a list with one prompt per agent")
    return list(found)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
