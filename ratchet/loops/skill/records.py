"""The typed records that the phases of the skill loop hand to each other.

Refuses to know how anything is asked, answered or decided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar


class Split(StrEnum):
    """What a task is for: rollouts and reflection, the gate, or one look at the end."""

    TRAIN = "train"
    VAL = "val"
    TEST = "test"


@dataclass(frozen=True)
class Task:
    """One question and every answer that counts as right (the first is the one to show)."""

    id: str
    question: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class Usage:
    """What calls took: how many, tokens in and out, money."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    money: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.calls + other.calls,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.money + other.money,
        )

    @property
    def tokens(self) -> int:
        """Both directions."""
        return self.prompt_tokens + self.completion_tokens

    def public(self) -> dict[str, int]:
        """As history.json shows it."""
        return {
            "calls": self.calls,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
        }


@dataclass(frozen=True)
class Answer:
    """What the target said to one task. An endpoint that failed gives none: it raises."""

    text: str
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True)
class Row:
    """One task answered and scored: `hard` 1 = exact match, `soft` = F1 of words, `contains` = it holds the answer."""

    id: str
    question: str
    answers: tuple[str, ...]
    said: str
    hard: int
    soft: float
    contains: int
    fail_reason: str


class Op(StrEnum):
    """What an edit does at the first exact match of its target."""

    APPEND = "append"
    INSERT_AFTER = "insert_after"
    REPLACE = "replace"
    DELETE = "delete"


class Kind(StrEnum):
    """Which rows a patch was learnt from. Failures go first wherever patches meet."""

    FAILURE = "failure"
    SUCCESS = "success"


@dataclass(frozen=True)
class Edit:
    """One bounded change. `target` is text of the skill (empty for append), `content` what is put there (empty for
    delete). `support`: the minibatches that proposed it."""

    op: Op
    content: str = ""
    target: str = ""
    reason: str = ""
    support: int = 1

    def public(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "op": str(self.op)}


def edit_from(value: Mapping[str, Any]) -> Edit:
    """The edit that `public` wrote."""
    return Edit(**{**value, "op": Op(value["op"])})


class EditStatus(StrEnum):
    """What became of a selected edit."""

    APPLIED = "applied"
    NO_MATCH = "no_match"
    """Its target stands nowhere in the document."""
    PROTECTED = "protected"
    """Its target lies in a protected block."""
    NO_CHANGE = "no_change"
    """The document is the same afterwards, such as a line appended that is there already."""
    INVALID = "invalid"
    """It lacks what its operation needs, or carries a protected block's mark."""
    REWRITTEN = "rewritten"
    """Given to the optimizer, which wrote the document anew (mode rewrite)."""


@dataclass(frozen=True)
class Patch:
    """Edits from one minibatch, or from several merged."""

    kind: Kind
    edits: tuple[Edit, ...]


class Action(StrEnum):
    """The published names of what a step came to, and `baseline` for the seed document's own evaluation.

    No `force_accept`: what enters the document has passed the gate.
    """

    BASELINE = "baseline"
    ACCEPT_NEW_BEST = "accept_new_best"
    ACCEPT = "accept"
    REJECT = "reject"
    SKIP_NO_PATCHES = "skip_no_patches"


@dataclass(frozen=True)
class Rejected:
    """An edit that the gate turned down in this epoch, shown to the optimizer so that it is not proposed again."""

    step: int
    edit: Edit
    delta: float

    def public(self) -> dict[str, Any]:
        """As JSON."""
        return {"step": self.step, "edit": self.edit.public(), "delta": self.delta}


@dataclass(frozen=True)
class Scores:
    """Means over the rows of one evaluation."""

    hard: float
    soft: float
    contains: float
    n: int

    def public(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Memory:
    """What the optimizer is told beside the rows: the document, this epoch's rejected edits, the previous epoch's
    lessons (`meta_skill`), and how many edits a step may make."""

    skill: str
    rejected: tuple[Rejected, ...] = ()
    meta_skill: str = ""
    edit_budget: int = 4


@dataclass(frozen=True)
class Pair:
    """One training task under the previous epoch's document and under the present one."""

    before: Row
    after: Row


T = TypeVar("T")


@dataclass(frozen=True)
class Asked(Generic[T]):
    """What an optimizer said, read, and what asking took."""

    value: T
    usage: Usage = field(default_factory=Usage)


class Target(Protocol):
    """The frozen agent. Raises InfrastructureError when an answer cannot be had: no answer is ever made up."""

    def answer(self, skill: str, tasks: Sequence[Task], sample: int) -> list[Answer]:
        """One answer per task, in their order. `sample` tells repeated looks at the same task apart."""
        ...


class Optimizer(Protocol):
    """Who proposes: functions of their arguments, which raise InfrastructureError when there is no answer."""

    def reflect(self, memory: Memory, kind: Kind, rows: Sequence[Row]) -> Asked[Patch]:
        """The edits that one minibatch suggests."""
        ...

    def merge(self, memory: Memory, patches: Sequence[Patch]) -> Asked[Patch]:
        """One patch from several, given failures first."""
        ...

    def rank(self, memory: Memory, edits: Sequence[Edit]) -> Asked[list[int]]:
        """The places of the best `memory.edit_budget` edits, best first."""
        ...

    def rewrite(self, memory: Memory, edits: Sequence[Edit]) -> Asked[str]:
        """The document written anew with `edits` as suggestions."""
        ...

    def guide(self, memory: Memory, previous: str, pairs: Sequence[Pair]) -> Asked[str]:
        """Guidance for the protected block of slow_update, from what a whole epoch changed."""
        ...

    def remember(self, memory: Memory, steps: Sequence[Mapping[str, Any]]) -> Asked[str]:
        """Lessons for the optimizer itself from an epoch's steps (their published records)."""
        ...
