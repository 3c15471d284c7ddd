"""What a session carries from one round to the next, and the rows of its ledger, as JSON.

Knows the keys; refuses to know how they come about. Everything a round may look at of earlier rounds is here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ratchet.loops.research.records import Failure, Status, Trial

ABBREVIATED = 10
"""Letters of a commit in results.tsv."""


@dataclass(frozen=True, kw_only=True)
class Version:
    """A judged version of the arena. `key` names its training, `score` its val_bpb at the session's own seed."""

    number: int
    commit: str
    key: str
    score: float
    lines: int


@dataclass(frozen=True, kw_only=True)
class State:
    """The committed state. `base`: the user's commit that the branch starts from; `number`: the next experiment's.

    `failures`: by slot, what its next proposal is shown once. `seconds_limit`: what a candidate's training may take.
    """

    base: str
    baseline: Version
    best: Version
    sd: float
    scores: tuple[float, ...]
    seconds_limit: float
    number: int = 1
    failures: Mapping[int, Failure] = field(default_factory=dict[int, Failure])
    curve: tuple[tuple[int, float], ...] = ()
    said: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """For the checkpoint."""
        return asdict(self)

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> State:
        """Back from the checkpoint; keys that an earlier version wrote and nobody reads are left out."""
        known = {each.name: told[each.name] for each in fields(cls) if each.name in told}
        versions = {name: Version(**told[name]) for name in ("baseline", "best")}
        more: dict[str, Any] = {
            "failures": {int(slot): _failure(value) for slot, value in told["failures"].items()},
            "curve": tuple((int(step), float(loss)) for step, loss in told["curve"]),
            "said": tuple(told["said"]),
            "scores": tuple(told["scores"]),
        }
        return cls(**{**known, **versions, **more})


def _failure(told: Mapping[str, Any]) -> Failure:
    return Failure(told["source"], told["reason"], tuple(told["said"]))


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One experiment in the ledger: its row of results.tsv, and what the session itself needs of it.

    `commit`: in full, "" when there was no proposal; `key`: of its training, "" when none was done for it.
    """

    number: int
    trial: Trial
    commit: str
    key: str
    progress: bool = False
    was_fix: bool = False

    def as_json(self) -> dict[str, Any]:
        """For the ledger's row."""
        return asdict(self)

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Entry:
        """Back from the ledger's row."""
        trial = Trial(**{**told["trial"], "status": Status(told["trial"]["status"])})
        return cls(**{**told, "trial": trial})


def entries(rows: Iterable[Mapping[str, Any]], before: int | None = None) -> list[Entry]:
    """The experiments of the ledger's rows (those before row `before`), in order, the baseline first."""
    return [Entry.of(told) for row in rows if before is None or row["seq"] < before for told in row["entries"]]


def abbreviated(commit: str) -> str:
    """`commit` as results.tsv shows it."""
    return commit[:ABBREVIATED]
