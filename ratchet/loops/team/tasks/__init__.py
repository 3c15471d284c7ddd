"""The team loop's tasks: three shipped ones by name, and a user's own.

The default is `helper`. Measured with two untrained SmolLM2-135M agents on 16 prompts x 4 samples, everything sampled
(temperature 1, top_p 1, no top_k), the first turn alone:

| task | new tokens | prompt tokens | mean reward | std within a group | groups with a difference |
|---|---|---|---|---|---|
| helper, stop at the line's end | 8 | 6 | 0.22 (0.26 on 32 held-out prompts) | 0.16 | 81 % |
| stories | 32 | 9 | 0.41 | 0.12 | 100 % |
| hanabi, stop at the line's end | 8 | 53 | 0.70 of 2.5 | 0.59 | 88 % |

`helper` is well below 1, four of five groups tell something, and an answer costs 2 to 5 tokens where the engine stops
at the line's end (stop at a newline, `max_new_tokens` 8). What can rise on held-out prompts is how sharply an agent
says what it knows, and that it says nothing else; a constant answer earns less than 0.13. Under the published sampling
(temperature 0.6, top_p 0.6, top_k 50) a similar wording told something in 25 % of the groups only: use temperature 1.
"""

from __future__ import annotations

from ratchet.core.errors import InputError
from ratchet.loops.own_code import called
from ratchet.loops.team.tasks.own import CallableTask, TransitionTask, named, own_task, task_of
from ratchet.loops.team.tasks.protocol import TURNS, Item, MultiTurn, Sizes, Task, Turn, at_turn, has_transition

SHIPPED = ("helper", "stories", "hanabi")

__all__ = [
    "SHIPPED", "TURNS", "CallableTask", "Item", "MultiTurn", "Sizes", "Task", "TransitionTask", "Turn",
    "at_turn", "has_transition", "load_task", "own_task",
]  # fmt: skip


def load_task(name: str, seed: int, sizes: Sizes) -> Task:
    """The task called `name`: a shipped one, or what the function `module:function` (or `FILE.py:function`) makes of
    `seed` and `sizes`.

    Raises InputError when there is no such task, or when it has too few prompts for `sizes`.
    """
    if ":" in name:
        return _made(name, seed, sizes)
    if name == "stories":
        from ratchet.loops.team.tasks.stories import Stories

        return Stories(seed, sizes)
    if name == "helper":
        from ratchet.loops.team.tasks.countries import Helper

        return Helper(seed, sizes)
    if name == "hanabi":
        from ratchet.loops.team.tasks.hanabi import Hanabi

        return Hanabi(seed, sizes)
    raise InputError("team.task", f"{name!r} is no task", f"write {', '.join(SHIPPED)} or module:function")


def _made(name: str, seed: int, sizes: Sizes) -> Task:
    return task_of(called(name, named(name, "team.task"), seed, sizes), name)
