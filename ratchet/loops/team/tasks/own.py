"""A user's own task: a reward and items as the published trainer takes them, by value or by name.

Knows how the published callables are called; refuses to know models.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ratchet.core.errors import InputError
from ratchet.loops.own_code import load_file, load_module
from ratchet.loops.team.tasks.prompt_files import read_items
from ratchet.loops.team.tasks.protocol import Item, Task, Turn

Formatter = Callable[..., str]
Transition = Callable[..., Sequence[str] | None]


class CallableTask:
    """Published callables as a task.

    `reward` takes one list of completions per agent, and `batch_items` or `prompts` when it names such a parameter.
    `formatters`: None (an item's `prompt`), one for all agents, or one per agent; each turns an item into a prompt and
    may take `external_prompts`. Raises InputError when their number is not `agents`.
    """

    def __init__(
        self,
        reward: Callable[..., Sequence[float]],
        train: Iterable[Mapping[str, Any]],
        evaluation: Iterable[Mapping[str, Any]] = (),
        *,
        agents: int,
        formatters: Formatter | Sequence[Formatter] | None = None,
        reward_processor: Callable[[float], float] | None = None,
        name: str = "",
    ) -> None:
        self.name = name or getattr(reward, "__name__", "task")
        self.train, self.evaluation = ([dict(item) for item in items] for items in (train, evaluation))
        self._reward, self._processor = _callable(reward, "reward"), reward_processor
        self._wants = [name for name in ("batch_items", "prompts") if name in _parameters(reward)]
        self._formatters = _formatters(formatters, agents)

    def prompts(self, item: Item, history: Sequence[Turn]) -> list[str]:
        """Each agent's formatter on the item; without a transition every turn asks the same."""
        return [formatter(item) for formatter in self._formatters]

    def reward(self, completions: list[list[str]], items: list[Item]) -> list[float]:
        """One call of the user's reward with all lists, then the processor on each number."""
        told = {"batch_items": items, "prompts": [item.get("prompt", "") for item in items]}
        found = self._reward(*completions, **{name: told[name] for name in self._wants})
        return [self._processor(value) for value in found] if self._processor else list(found)


class TransitionTask(CallableTask):
    """A CallableTask whose `transition`, called as the published `external_transition`, makes the next prompts.

    With `passthrough` its texts are the prompts; else each agent's formatter makes a prompt of the item with the text
    under `prompt`.
    """

    def __init__(self, *pieces: Any, transition: Transition, passthrough: bool = False, **more: Any) -> None:
        super().__init__(*pieces, **more)
        self._transition = _callable(transition, "external_transition")
        self._passthrough = passthrough

    def transition(self, item: Item, joint: Sequence[str], turn: int, history: Sequence[Turn]) -> list[str] | None:
        """The published call: what was asked and said on this branch, by agent. None ends the episode."""
        agents = range(len(self._formatters))
        texts = self._transition(
            prompt=item.get("prompt", ""),
            agent_completions=list(joint),
            num_agents=len(agents),
            prompt_history_per_agent=[[turn.prompts[agent] for turn in history] for agent in agents],
            response_history_per_agent=[[turn.completions[agent] for turn in history] for agent in agents],
        )
        if texts is None or self._passthrough or len(texts) != len(agents):
            return None if texts is None else list(texts)
        pairs = zip(self._formatters, texts, strict=True)
        return [_formatted(formatter, {**item, "prompt": text}, text) for formatter, text in pairs]


def own_task(
    reward: str,
    train: Path,
    evaluation: Path,
    *,
    agents: int,
    formatters: Sequence[str] | None = None,
    external_transition: str | None = None,
    passthrough: bool = False,
) -> Task:
    """The task that the section `team.data` names. Raises InputError for a name or a file that is not there, and for a
    prompt that stands in both files."""
    call, items, held_out = named(reward, "team.data.reward"), read_items(train), read_items(evaluation)
    if shared := {item["prompt"] for item in items} & {item["prompt"] for item in held_out}:
        what = f"shares {len(shared)} prompts with {train}, such as {min(shared)[:60]!r}"
        raise InputError(evaluation, what, "take them out: what was trained on shows nothing when evaluated")
    found = None if formatters is None else [named(name, "team.data.formatters") for name in formatters]
    told: dict[str, Any] = {"agents": agents, "name": reward}
    told["formatters"] = found[0] if found is not None and len(found) == 1 else found
    if external_transition is None:
        return CallableTask(call, items, held_out, **told)
    told["transition"] = named(external_transition, "team.data.external_transition")
    return TransitionTask(call, items, held_out, passthrough=passthrough, **told)


def named(name: str, where: str) -> Callable[..., Any]:
    """The callable `module:function` or `FILE.py:function`. Raises InputError."""
    source, _, function = name.rpartition(":")
    if not source or not function:
        raise InputError(where, f"{name!r} names no function", "write module:function or FILE.py:function")
    path = Path(source)
    is_file = source.endswith(".py")
    module = load_file(path, f"ratchet_team_{path.stem}", where) if is_file else load_module(source, where)
    if not callable(found := getattr(module, function, None)):
        raise InputError(where, f"{source} has no function {function!r}", "name one that it has")
    return found


def task_of(made: Any, where: str) -> Task:
    """`made` as a task. Raises InputError when it lacks what a task has."""
    lacking = [name for name in ("name", "train", "evaluation", "prompts", "reward") if not hasattr(made, name)]
    if lacking:
        raise InputError(where, f"{type(made).__name__} has no {lacking[0]!r}", "see docs/team.md for what a task has")
    return made


def _formatters(given: Formatter | Sequence[Formatter] | None, agents: int) -> list[Formatter]:
    if given is None or callable(given):
        return [given or _prompt_of] * agents
    if len(given) != agents:
        raise InputError("formatters", f"{len(given)} for {agents} agents", "give one for all, or one per agent")
    return [_callable(each, "formatters") for each in given]


def _prompt_of(item: Item) -> str:
    return item.get("prompt", "")


def _formatted(formatter: Formatter, item: Item, text: str) -> str:
    wants = "external_prompts" in _parameters(formatter)
    return formatter(item, external_prompts=text) if wants else formatter(item)


def _callable(value: Any, what: str) -> Any:
    if not callable(value):
        raise InputError(what, f"{value!r} cannot be called", "give a function")
    return value


def _parameters(function: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # a callable written in C has no signature
        return set()
