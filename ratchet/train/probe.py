"""The secret plan of a judging: which candidate is asked what, when, and what may not move.

Two candidate processes share the rows. Some rows are asked a second time of the *other* process, in other company and
at a secret moment: unchanged (the answer may not move) or with everything after a secret cut replaced (the answers
before the cut may not move). Knows rows of ids; refuses to know logits and scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import numpy as np

from ratchet.train.refusal import Reason, Refused

ALTERED_SHARE = 0.03
REPEATED_SHARE = 0.01


class Tolerance(NamedTuple):
    """How far honest answers may move between two askings, in nats of a target: any one, and their mean.

    A peek hidden in rounding moves many targets a little, always in one direction: the mean finds it.
    """

    one: float
    mean: float


TOLERANCES = {"float32": Tolerance(1e-4, 1e-5), "bfloat16": Tolerance(5e-2, 1e-3)}
"""By dtype of the model. Measured, then frozen: docs/judge.md."""


class Look(Enum):
    """Why a batch is asked. The candidate cannot tell: all batches have one shape."""

    JUDGED = "judged"
    REPEATED = "repeated"
    ALTERED = "altered"


@dataclass(frozen=True)
class Ask:
    """One batch: a row number for each place. Only the first `used` answers are looked at, the rest is filling.

    ALTERED: place i shows row `rows[i]` up to position `cuts[i]` and row `donors[i]` from there on.
    """

    look: Look
    rows: tuple[int, ...]
    used: int
    cuts: tuple[int, ...] = ()
    donors: tuple[int, ...] = ()

    def inputs(self, rows_RT1: np.ndarray, vocab_size: int) -> np.ndarray:
        """The ids to show, int32 [B, T]. The id at a cut always differs from the one it replaces."""
        inputs_BT = np.asarray(rows_RT1[list(self.rows), :-1]).astype(np.int32)
        for place, (cut, donor) in enumerate(zip(self.cuts, self.donors, strict=True)):
            row = self.rows[place]
            suffix = rows_RT1[row, :-1][::-1][cut:] if donor == row else rows_RT1[donor, cut:-1]
            original = inputs_BT[place, cut]
            inputs_BT[place, cut:] = suffix
            if inputs_BT[place, cut] == original:
                inputs_BT[place, cut] = (original + 1) % vocab_size
        return inputs_BT

    def targets(self, rows_RT1: np.ndarray) -> np.ndarray:
        """The ids to score, int64 [B, T]: always those of the text itself, altered or not."""
        return np.asarray(rows_RT1[list(self.rows), 1:]).astype(np.int64)


@dataclass(frozen=True)
class Plan:
    """What each of the two candidates is asked, in order."""

    asks: tuple[tuple[Ask, ...], tuple[Ask, ...]]

    def probed(self, look: Look) -> int:
        """How many rows are asked again in this way; the same for every seed."""
        return sum(ask.used for side in self.asks for ask in side if ask.look is look)

    def probed_rows(self) -> set[int]:
        """The rows whose first answers the evidence needs."""
        probes = [ask for side in self.asks for ask in side if ask.look is not Look.JUDGED]
        return {row for ask in probes for row in ask.rows[: ask.used]}


def make_plan(rows: int, length: int, batch_rows: int, seed: int) -> Plan:
    """The plan for `rows` rows of `length` positions, `batch_rows` at a time. `seed` is the secret.

    Which rows share a batch is fixed, so an honest model gets the same bits whatever the seed; the seed draws who is
    asked, in which order, and every probe. A row is probed once, by the process that has not seen it, with the suffix
    of a row that process does not see either.
    """
    draw = np.random.default_rng(seed)
    batches = [range(first, min(first + batch_rows, rows)) for first in range(0, rows, batch_rows)]
    order = draw.permutation(len(batches))
    sides = [[batches[number] for number in order[side::2]] for side in (0, 1)]
    smallest = min(len(batches) // 2 * batch_rows - (len(batches) * batch_rows - rows), rows)
    asks = [[Ask(Look.JUDGED, _filled(batch, batch_rows), len(batch)) for batch in side] for side in sides]
    for side, others in ((sides[0], asks[1]), (sides[1], asks[0])):
        pool = draw.permutation([row for batch in side for row in batch])
        for ask in _probes(pool, max(smallest, 1), rows, length, batch_rows, draw):
            others.insert(int(draw.integers(len(others) + 1)), ask)
    return Plan((tuple(asks[0]), tuple(asks[1])))


def _probes(
    pool: np.ndarray, available: int, rows: int, length: int, batch_rows: int, draw: np.random.Generator
) -> Iterator[Ask]:
    """Probes of some rows of one side's `pool`, at most as many as `available`; none when the pool is empty."""
    if not pool.size:
        return
    altered = min(_in_batches(ALTERED_SHARE * rows / 2, batch_rows), max(1, available // 2))
    repeated = min(_in_batches(REPEATED_SHARE * rows / 2, batch_rows), max(1, available - altered))
    for first in range(0, repeated, batch_rows):
        some = [int(row) for row in pool[-repeated:][first : first + batch_rows]]
        yield Ask(Look.REPEATED, _filled(some, batch_rows), len(some))
    for first in range(0, altered, batch_rows):
        some = [int(row) for row in pool[:altered][first : first + batch_rows]]
        cuts = [int(cut) for cut in draw.integers(1, length, len(some))] if length > 1 else [0] * len(some)
        donors = [_donor(row, pool, draw) for row in some]
        yield Ask(Look.ALTERED, _filled(some, batch_rows), len(some), tuple(cuts), tuple(donors))


def _in_batches(wanted: float, batch_rows: int) -> int:
    """`wanted` rows, at least one, rounded up to whole batches: the places would be asked anyway."""
    return max(1, math.ceil(wanted / batch_rows)) * batch_rows


def _filled(rows: Sequence[int], batch_rows: int) -> tuple[int, ...]:
    """`rows` cycled up to a whole batch."""
    return tuple(rows[place % len(rows)] for place in range(batch_rows))


def _donor(row: int, pool: np.ndarray, draw: np.random.Generator) -> int:
    """Another row of the pool; the row itself when there is no other (its suffix is then reversed)."""
    others = pool[pool != row]
    return int(draw.choice(others)) if others.size else row


class Again(NamedTuple):
    """The nats of a row asked a second time, of the positions that may not move."""

    look: Look
    row: int
    nats: np.ndarray


CONCLUSIONS = {
    Look.REPEATED: (
        "the same row asked again",
        Reason.CHANGING_ANSWERS,
        "let `logits` depend on its row alone: no state, no other rows, no chance",
    ),
    Look.ALTERED: (
        "another future",
        Reason.LOOK_AHEAD,
        "let no position see a later one: mask attention, mixing and statistics",
    ),
}
"""What a move says: in the order in which they are looked at, since a model that answers at random moves both."""


@dataclass
class Evidence:
    """First answers by row, and second ones, in nats of the text's own targets: what the metric is made of."""

    first: dict[int, np.ndarray] = field(default_factory=dict)
    again: list[Again] = field(default_factory=list)

    def verdict(self, tolerance: Tolerance) -> float:
        """The largest move of all when none exceeds `tolerance`. Raises Refused with the kind of move that does."""
        return max(self._largest(look, tolerance) for look in CONCLUSIONS)

    def _largest(self, look: Look, tolerance: Tolerance) -> float:
        what, reason, do = CONCLUSIONS[look]
        moves = [np.zeros(1)]
        for row, nats in ((again.row, again.nats) for again in self.again if again.look is look and again.nats.size):
            move = nats - self.first[row][: nats.size]
            at = int(np.abs(move).argmax())
            if abs(move[at]) > tolerance.one:
                detail = f"an answer by {move[at]:.3g} nats (row {row}, target {at}; at most {tolerance.one:g})"
                raise Refused(reason, f"{what} moves {detail}", do)
            moves.append(move)
        every = np.concatenate(moves)
        if abs(every.mean()) > tolerance.mean:
            detail = f"its answers by {every.mean():.3g} nats a target (at most {tolerance.mean:g})"
            raise Refused(reason, f"{what} moves all {detail}", do)
        return float(np.abs(every).max())
