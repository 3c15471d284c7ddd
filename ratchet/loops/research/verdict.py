"""From judged candidates to verdicts: the objective's caps, the gate on paired documents, a fresh seed where unsure.

Knows scores and tables of documents; refuses to know how they were measured and what becomes of a commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ratchet.core.gate import Measured, Rule, Verdict, decide
from ratchet.loops.research.compare import compare, mean_of
from ratchet.loops.research.executor import Result
from ratchet.loops.research.records import Status


@dataclass(frozen=True)
class Look:
    """One training of a version, judged: how it ended, and its table of documents (None for a crash)."""

    result: Result
    table: Any


@dataclass(frozen=True)
class Contender:
    """A candidate that was trained: its experiment's number, its length, and its look at the session's own seed."""

    number: int
    lines: int
    look: Look


@dataclass(frozen=True)
class Incumbent:
    """What candidates are compared with: its score, table and length at the session's own seed."""

    score: float
    lines: int
    table: Any


@dataclass(frozen=True)
class Decided:
    """What becomes of one candidate, and why. `gain`: over the incumbent at the same seed."""

    status: Status
    reason: str
    gain: float | None = None
    progress: bool = False


FreshLooks = Callable[[Sequence[Contender]], tuple[Look, list[Look]]]
"""Train and judge the incumbent and these contenders once more, on one fresh seed."""


@dataclass(frozen=True)
class Court:
    """Decides a round. `maximum`: the objective's caps; `seed` names the draws of the bootstrap."""

    rule: Rule
    maximum: Mapping[str, float]
    seed: int
    incumbent: Incumbent

    def verdicts(self, contenders: Sequence[Contender], again: FreshLooks) -> dict[int, Decided]:
        """One verdict for each contender, by its number; at most one is a keep."""
        found: dict[int, Decided] = {}
        unsure: list[Contender] = []
        for each in contenders:
            told = self._first(each)
            if isinstance(told, Decided):
                found[each.number] = told
            elif told.decision == "confirm":
                unsure.append(each)
            else:
                found[each.number] = decided(told)
        if unsure:
            ours, theirs = again(unsure)
            for each, look in zip(unsure, theirs, strict=True):
                found[each.number] = self._second(each, ours, look)
        return one_winner({each.number: found[each.number] for each in contenders})

    def _first(self, each: Contender) -> Decided | Verdict:
        result = each.look.result
        if result.val_bpb is None:
            return Decided(Status.CRASH, result.reason)
        gain = self.incumbent.score - result.val_bpb
        if why := over_the_caps(result, self.maximum):
            return Decided(Status.DISCARD, why, gain)
        return self._gate(
            [self.incumbent.score], [self.incumbent.table], [result.val_bpb], [each.look.table], each, "first"
        )

    def _second(self, each: Contender, ours: Look, theirs: Look) -> Decided:
        """The verdict over two seeds: both means count."""
        first, gain = each.look, self.incumbent.score - (each.look.result.val_bpb or 0.0)
        for who, look in (("it", theirs), ("the incumbent", ours)):
            if look.result.val_bpb is None:
                return Decided(Status.DISCARD, f"on a fresh seed {who} crashed: {look.result.reason}", gain)
        before = [self.incumbent.score, ours.result.val_bpb or 0.0]
        after = [first.result.val_bpb or 0.0, theirs.result.val_bpb or 0.0]
        tables = [self.incumbent.table, ours.table]
        told = self._gate(before, tables, after, [first.table, theirs.table], each, "confirmed")
        return replace(decided(told, "over two seeds "), gain=gain)

    def _gate(
        self, before: list[float], tables_before: list[Any], after: list[float], tables_after: list[Any],
        each: Contender, phase: str,
    ) -> Verdict:  # fmt: skip
        name = [phase, each.number]
        bound = compare(mean_of(tables_before), mean_of(tables_after), seed=self.seed, name=name).lower_one_sided
        candidate = Measured(
            score=sum(after) / len(after), lower=bound, lines=each.lines, confirmed=phase == "confirmed"
        )
        return decide(self.rule, Measured(score=sum(before) / len(before), lines=self.incumbent.lines), candidate)


def over_the_caps(result: Result, maximum: Mapping[str, float]) -> str | None:
    """Why the program's objective rules this result out, or None. The value is in a column of its own."""
    for name, cap in maximum.items():
        value = {"params_m": result.params_m, "memory_gb": result.memory_gb}[name]
        if value is None or value > cap:
            return f"{name} is above the objective's {cap:g}"
    return None


def decided(verdict: Verdict, note: str = "") -> Decided:
    """A final verdict of the gate as the table says it."""
    status = {"keep": Status.KEEP, "discard": Status.DISCARD, "crash": Status.CRASH}[verdict.decision]
    return Decided(status, f"{note}{verdict.reason}", verdict.gain, verdict.progress)


def one_winner(found: Mapping[int, Decided]) -> dict[int, Decided]:
    """At most one keep: the largest progress, else the first simplification; the others say which was kept instead."""
    kept = [number for number, each in found.items() if each.status is Status.KEEP]
    if len(kept) < 2:
        return dict(found)
    best = max(kept, key=lambda number: (found[number].progress, found[number].gain or 0.0, -number))
    said = f"; but experiment {best} of the same round is kept"
    losers = {number: Decided(Status.DISCARD, found[number].reason + said, found[number].gain) for number in kept}
    return {**found, **losers, best: found[best]}
