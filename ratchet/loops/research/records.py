"""The typed records that the phases of the research loop hand to each other.

Refuses to know how a proposal is made, run or judged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from ratchet.core.errors import RatchetError
from ratchet.loops.research.program import Program


class Status(StrEnum):
    """What became of an experiment, as results.tsv spells it. A baseline is a `keep` whose parent is empty."""

    KEEP = "keep"
    DISCARD = "discard"
    CRASH = "crash"


@dataclass(frozen=True)
class Cost:
    """What a proposal took of paid resources."""

    calls: int = 0
    tokens: int = 0
    money: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One row of results.tsv, in the order of its columns: the published five, then ours. None = empty."""

    commit: str
    val_bpb: float | None
    memory_gb: float | None
    status: Status
    description: str
    parent: str
    arena_sha: str
    seed: int
    steps: int | None
    tokens: int | None
    seconds: float | None
    params_m: float | None
    delta: float | None
    """val_bpb of the incumbent minus this one, at the same seed: positive is better."""
    noise: float | None
    """sd of val_bpb over the baseline's seeds, as the gate used it."""
    diff_lines: int
    reason: str
    proposer: str
    isolation: str
    cost: float
    """Money."""


@dataclass(frozen=True)
class Proposal:
    """A whole new source of arena/train.py and one line that says what it tries."""

    source: str
    description: str
    proposer: str
    cost: Cost = field(default_factory=Cost)


@dataclass(frozen=True)
class Failure:
    """What went wrong with a proposal, shown once to its proposer: the source, the reason, and what it printed last
    (untrusted text, control characters taken out)."""

    source: str
    reason: str
    said: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Question:
    """All that a proposer may know when it is asked for the candidate of `slot` in round `seq`.

    `trials`: every finished experiment in order; `source_of` gives the arena's text of a trial's commit. `pending`:
    proposals already made in this round. `curve`: (step, loss) of the last finished training. `folder`: the proposer's
    own storage, which outlives a kill; the answer must depend on it only through what was paid for. `seed` is derived
    from names: the same question gets the same answer.
    """

    seq: int
    slot: int
    seed: int
    program: Program
    source: str
    commit: str
    val_bpb: float
    trials: tuple[Trial, ...]
    source_of: Callable[[str], str]
    folder: Path
    pending: tuple[Proposal, ...] = ()
    curve: tuple[tuple[int, float], ...] = ()
    said: tuple[str, ...] = ()
    failure: Failure | None = None
    left: Mapping[str, float] = field(default_factory=dict[str, float])


class NoProposal(RatchetError):  # noqa: N818  (an answer more than an error)
    """The proposer has no candidate this time (edits that do not apply, an empty reply, a search space used up).

    The experiment becomes a crash row with this reason; the loop goes on. `cost`: what the attempt took.
    """

    def __init__(self, where: object, what: str, do: str, cost: Cost | None = None) -> None:
        super().__init__(where, what, do)
        self.cost = cost or Cost()


class Exhausted(NoProposal):
    """No candidate now and none later: every value was tried, or the earlier session is replayed to its end."""


class Proposer(Protocol):
    """Proposes candidates. Raises NoProposal, or InfrastructureError when the world failed (never a row)."""

    name: str

    def propose(self, question: Question) -> Proposal: ...
