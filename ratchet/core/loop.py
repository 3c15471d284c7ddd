"""The one loop under all loops: load, step, ledger row, commit, until the budget ends.

Knows the order in which evidence and state become durable; refuses to know what a step does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ratchet.core import atomic
from ratchet.core.budget import Budget
from ratchet.core.checkpoint import Blobs, Store
from ratchet.core.errors import InputError
from ratchet.core.ledger import Ledger


@dataclass(frozen=True)
class Outcome:
    """What one step leaves: JSON `state`, its ledger `row`, `blobs` (name → writer of one file at the path it is
    given), and a `score` (lower is better) for checkpoints kept as the best."""

    state: Mapping[str, Any]
    row: Mapping[str, Any]
    blobs: Blobs = field(default_factory=dict[str, Callable[[Path], None]])
    score: float | None = None


Step = Callable[[int, dict[str, Any]], Outcome]


def drive(initial: Mapping[str, Any], step: Step, *, store: Store, ledger: Ledger, budget: Budget) -> dict[str, Any]:
    """Run `step(seq, state)` until `budget` ends and return the last committed state.

    `step` must be a pure function of its arguments, the blobs of `store` and seeds derived from names: killed anywhere
    and called again, `drive` then ends in the same bytes. Raises InputError when ledger and checkpoint disagree.
    """
    seq, state = store.load() or (0, atomic.plain(initial, store.folder))
    if len(ledger.rows()) < seq:
        what = f"holds {len(ledger.rows())} good rows, but the checkpoint was taken after row {seq - 1}"
        raise InputError(ledger.path, what, "restore the ledger, or remove the run and start again")
    while budget.exhausted(seq, ledger.rows()) is None:
        outcome = step(seq, state)
        ledger.put(seq, outcome.row)  # the evidence first; the same seq replaces an uncommitted tail
        seq, state = seq + 1, atomic.plain(outcome.state, store.folder)
        store.commit(seq, state, outcome.blobs, score=outcome.score)  # then blobs, then HEAD
    return state
