"""An answer looked at before anything of it runs: refused, no change, tried before, or worth a training.

Knows texts and earlier rows; refuses to know git and how an experiment runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ratchet.loops.research import guard
from ratchet.loops.research.proposing import Answer
from ratchet.loops.research.records import Status
from ratchet.loops.research.state import Entry, Version
from ratchet.loops.research.verdict import Decided


@dataclass(frozen=True)
class Candidate:
    """One slot of a round. `early`: decided without training; `known`: its val_bpb then, from an earlier training."""

    number: int
    answer: Answer
    commit: str = ""
    sha: str = ""
    early: Decided | None = None
    known: float | None = None


def examined(
    found: Candidate, best: Version, incumbent_sha: str, first: Mapping[str, Entry], made: Sequence[Candidate]
) -> Candidate:
    """`found` with its hash, and its verdict when it needs no training.

    `best` is the incumbent, `first` has for each hash its first experiment, `made` are the round's candidates so far.
    """
    source, refused = found.answer.source, found.answer.refused
    if not source:
        return replace(found, early=Decided(Status.CRASH, refused))
    if why := refused or guard.refusal(source):
        return replace(found, early=Decided(Status.CRASH, why))
    found = replace(found, sha=guard.arena_sha(source))
    if found.sha == incumbent_sha:
        why = "nothing but comments, docstrings or formatting differs from the incumbent"
        return replace(found, early=Decided(Status.DISCARD, why, 0.0), known=best.score)
    if found.sha in first:
        return _repeat(found, first[found.sha], best.score)
    if twin := next((each for each in made if each.sha == found.sha), None):
        # a crash, for its score is not known before the round ends, and only a crash has none
        return replace(found, early=Decided(Status.CRASH, f"repeats experiment {twin.number} of the same round"))
    return found


def _repeat(found: Candidate, earlier: Entry, best: float) -> Candidate:
    """A candidate that was tried before: its score is known, if it had one."""
    score, said = earlier.trial.val_bpb, f"repeats experiment {earlier.number}"
    if score is None:
        why = f"{said}, which crashed: {earlier.trial.reason}"
        return replace(found, early=Decided(Status.CRASH, why))
    why = f"{said}, a {earlier.trial.status}: not trained again"
    return replace(found, early=Decided(Status.DISCARD, why, best - score), known=score)
