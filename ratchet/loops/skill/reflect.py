"""Phase reflect: failures and successes, shuffled apart and cut into minibatches, each of which suggests edits.

Refuses to know how an optimizer thinks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ratchet.core.seeds import Permutation, derive
from ratchet.loops.skill.parallel import in_order
from ratchet.loops.skill.records import Kind, Memory, Optimizer, Patch, Row, Usage


@dataclass(frozen=True)
class Minibatch:
    """Rows of one kind that one call looks at."""

    kind: Kind
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Reflection:
    """The patches that hold an edit, failures first, and what they took."""

    patches: tuple[Patch, ...]
    usage: Usage

    def count(self, kind: Kind) -> int:
        """How many patches came from rows of `kind`."""
        return sum(patch.kind is kind for patch in self.patches)


def minibatches(rows: Sequence[Row], size: int, seed: int, step: int) -> list[Minibatch]:
    """`rows` as minibatches of at most `size`: failures first, each kind in an order of its own that `step` names."""
    found: list[Minibatch] = []
    for kind in (Kind.FAILURE, Kind.SUCCESS):
        own = [row for row in rows if (row.hard == 0) == (kind is Kind.FAILURE)]
        order = Permutation(len(own), derive(seed, "reflect", step, str(kind)))
        shuffled = [own[order[place]] for place in range(len(own))]
        found += [Minibatch(kind, tuple(shuffled[at : at + size])) for at in range(0, len(own), size)]
    return found


def reflect(
    memory: Memory, batches: Sequence[Minibatch], optimizer: Optimizer, workers: int, *, failure_only: bool = False
) -> Reflection:
    """One patch per minibatch, in their order. `failure_only`: successes teach nothing and cost nothing.

    Raises InfrastructureError when an optimizer gives no patch that can be read.
    """
    asked = [each for each in batches if each.kind is Kind.FAILURE or not failure_only]
    said = in_order(lambda each: optimizer.reflect(memory, each.kind, each.rows), asked, workers)
    patches = [replace(answer.value, kind=each.kind) for answer, each in zip(said, asked, strict=True)]
    return Reflection(tuple(patch for patch in patches if patch.edits), sum((answer.usage for answer in said), Usage()))
