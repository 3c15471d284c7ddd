"""What the skill loop carries from one step to the next: everything, as JSON, and nothing in memory.

Refuses to know how a step is made. 0.0 is a score; a score that is not there yet is None.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ratchet.loops.skill.records import Edit, Rejected, Scores, Usage, edit_from

INITIAL = "initial"


@dataclass(frozen=True)
class Version:
    """A document with its validation: the gate's value of each task, the means, and the step it came from."""

    text: str
    origin: str = INITIAL
    step: int = 0
    values: tuple[float, ...] = ()
    scores: Scores | None = None
    score: float | None = None
    """Mean of the gate's metric; None before it was evaluated."""

    @property
    def hash(self) -> str:
        """sha256 of the text, 16 digits."""
        return text_hash(self.text)


@dataclass(frozen=True)
class State:
    """After `step` training steps (0 with `baseline` None: nothing was evaluated yet)."""

    current: Version
    best: Version
    step: int = 0
    baseline: Scores | None = None
    rejected: tuple[Rejected, ...] = ()
    """Of this epoch, oldest first."""
    epoch_skill: str = ""
    """The document as it was when this epoch began."""
    meta_skill: str = ""
    analyst: Usage = field(default_factory=Usage)
    rollout: Usage = field(default_factory=Usage)

    def public(self) -> dict[str, Any]:
        """As JSON."""
        plain = asdict(self)
        plain["rejected"] = [each.public() for each in self.rejected]
        return plain


def text_hash(text: str) -> str:
    """sha256 of `text`, 16 digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def initial(skill: str) -> State:
    """Before anything was asked."""
    version = Version(skill)
    return State(version, version, epoch_skill=skill)


def state_from(value: Mapping[str, Any]) -> State:
    """The state that `public` wrote."""
    fields = dict(value)
    for name in ("current", "best"):
        fields[name] = _version_from(fields[name])
    fields["baseline"] = _scores_from(fields["baseline"])
    fields["rejected"] = tuple(_rejected_from(each) for each in fields["rejected"])
    fields["analyst"], fields["rollout"] = Usage(**fields["analyst"]), Usage(**fields["rollout"])
    return State(**fields)


def _version_from(value: Mapping[str, Any]) -> Version:
    scores = _scores_from(value["scores"])
    return Version(**{**value, "values": tuple(value["values"]), "scores": scores})


def _scores_from(value: Mapping[str, Any] | None) -> Scores | None:
    return None if value is None else Scores(**value)


def _rejected_from(value: Mapping[str, Any]) -> Rejected:
    return Rejected(value["step"], edit_from(value["edit"]), value["delta"])


def with_rejected(state: State, edits: Sequence[Edit], delta: float, limit: int) -> State:
    """`state` with `edits` among the rejected, of which the newest `limit` are kept."""
    added = (*state.rejected, *(Rejected(state.step, edit, delta) for edit in edits))
    return replace(state, rejected=added[-limit:] if limit else ())


def evaluated(text: str, origin: str, step: int, values: Sequence[float], scores: Scores) -> Version:
    """The version that an evaluation of `text` on the validation tasks makes."""
    return Version(text, origin, step, tuple(values), scores, sum(values) / len(values))
