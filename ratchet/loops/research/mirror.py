"""A session in Weights & Biases: one point an experiment, and a summary that grows with each.

The ledger is the truth and this repeats it (train/mirror.py says how failures are met). Refuses to know experiments
beyond their rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ratchet.loops.research.board import Board
from ratchet.loops.research.events import Session
from ratchet.loops.research.records import Status, Trial
from ratchet.settings import Settings
from ratchet.tables.findings import Found
from ratchet.train.mirror import Mirror, RunIdentity, Sent, kept_identity

COLUMNS = ("val_bpb", "best_val_bpb", "delta", "seconds", "params_m", "memory_gb", "kept", "crashed", "cost")
SENT = Sent("iterate", COLUMNS, "the session")


class SessionMirror:
    """An Events that sends each decided row once, in one W&B run however often the session is resumed."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._board = settings, Board()
        self._mirror: Mirror | None = None
        self._identity: RunIdentity | None = None

    def began(self, session: Session) -> None:
        """See Events."""
        self._board.began(session)
        if session.folder is None or self._settings.wandb == "disabled":
            return
        self._identity = kept_identity(session.folder, self._settings)
        config = {"tag": session.tag, "proposer": session.proposer, "isolation": session.isolation}
        self._mirror = Mirror(self._settings.wandb, session.folder, config, SENT)
        self._send()

    def proposing(self, number: int) -> None:
        """See Events."""

    def started(self, number: int, description: str) -> None:
        """See Events."""

    def progressed(self, number: int, step: int, of: int) -> None:
        """See Events."""

    def trained(self, number: int, seconds: float) -> None:
        """See Events."""

    def judged(self, number: int, val_bpb: float) -> None:
        """See Events."""

    def decided(self, number: int, trial: Trial) -> None:
        """See Events."""
        self._board.decided(number, trial)
        self._send()

    def noted(self, text: str) -> None:
        """See Events."""

    def found(self, findings: Sequence[Found]) -> None:
        """See Events."""
        if self._mirror:
            self._mirror.tell(lambda: findings)

    def ended(self, why: str) -> None:
        """See Events."""
        self._board.ended(why)
        if self._mirror:
            self._mirror.summarise(summary(self._board))
            self._mirror.close()

    def _send(self) -> None:
        if self._mirror and self._board.trials:
            self._mirror.send(self._identity, rows(self._board.trials))
            self._mirror.summarise(summary(self._board))


def rows(trials: list[Trial]) -> list[dict[str, Any]]:
    """One mapping a row with the running best, counts and cost up to it; `step` is its number."""
    told: list[dict[str, Any]] = []
    best, cost = None, 0.0
    for number, trial in enumerate(trials):
        best = trial.val_bpb if trial.status is Status.KEEP else best
        cost += trial.cost
        kept = sum(each.status is Status.KEEP for each in trials[1 : number + 1])
        crashed = sum(each.status is Status.CRASH for each in trials[: number + 1])
        more = {"step": number, "best_val_bpb": best, "kept": kept, "crashed": crashed, "cost": cost}
        told.append({**asdict(trial), **more})
    return told


def summary(board: Board) -> dict[str, Any]:
    """What the run's summary says."""
    best = board.best
    return {
        "iterate/experiments": board.done,
        "iterate/best_val_bpb": best.val_bpb if best else None,
        "iterate/best_commit": best.commit if best else None,
        "iterate/best_description": best.description if best else None,
        "iterate/gain": board.gain,
        "iterate/cost": board.cost,
        "iterate/ended": board.why,
    }
