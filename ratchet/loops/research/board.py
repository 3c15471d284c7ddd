"""What is known of a running session at an instant: rows, what is tried now, best, time left, cost.

Knows moments and a clock; refuses to know how any of it is shown. Written as JSON into the run directory, from which
other processes make the same board again.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ratchet.loops.research.events import Session, best_so_far
from ratchet.loops.research.records import Status, Trial
from ratchet.tables.findings import Found
from ratchet.tables.results import one_line

NOTES = 4


@dataclass
class Attempt:
    """An experiment that is under way. `phase`: proposing, training or judging; `step` of `of`: of its training."""

    description: str = ""
    phase: str = "proposing"
    step: int = 0
    of: int = 0
    val_bpb: float | None = None


@dataclass
class Board:
    """The state of a session as events tell it; itself an Events. Threads may tell at once."""

    session: Session | None = None
    trials: list[Trial] = field(default_factory=list[Trial])
    attempts: dict[int, Attempt] = field(default_factory=dict[int, Attempt])
    notes: deque[str] = field(default_factory=lambda: deque(maxlen=NOTES))
    why: str = ""
    """Why it ended; "" while it goes on."""
    spent_s: float = 0.0
    """Seconds of processes before this one."""
    since: float = field(default_factory=time.monotonic)
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    # What is told

    def began(self, session: Session) -> None:
        """See Events."""
        with self.lock:
            self.session, self.trials, self.spent_s = session, list(session.trials), session.spent_s
            self.attempts, self.why, self.since = {}, "", time.monotonic()

    def proposing(self, number: int) -> None:
        """See Events."""
        with self.lock:
            self.attempts[number] = Attempt()

    def started(self, number: int, description: str) -> None:
        """See Events."""
        with self.lock:
            self.attempts[number] = Attempt(one_line(description), "training")

    def progressed(self, number: int, step: int, of: int) -> None:
        """See Events."""
        with self.lock:
            attempt = self.attempts.setdefault(number, Attempt("", "training"))
            attempt.step, attempt.of = step, of

    def trained(self, number: int, seconds: float) -> None:
        """See Events."""
        del seconds
        with self.lock:
            self.attempts.setdefault(number, Attempt()).phase = "judging"

    def judged(self, number: int, val_bpb: float) -> None:
        """See Events."""
        with self.lock:
            attempt = self.attempts.setdefault(number, Attempt())
            attempt.phase, attempt.val_bpb = "judged", val_bpb

    def decided(self, number: int, trial: Trial) -> None:
        """See Events."""
        with self.lock:
            self.trials[number:] = [trial]
            self.attempts = {other: attempt for other, attempt in self.attempts.items() if other > number}

    def noted(self, text: str) -> None:
        """See Events."""
        with self.lock:
            self.notes.append(one_line(text))

    def found(self, findings: Sequence[Found]) -> None:
        """See Events."""

    def ended(self, why: str) -> None:
        """See Events."""
        with self.lock:
            self.attempts, self.why = {}, one_line(why)

    # What follows from it

    @property
    def done(self) -> int:
        """Experiments that are decided, without the baseline."""
        return max(0, len(self.trials) - 1)

    @property
    def total(self) -> int | None:
        """Experiments that the session may make; None without a cap."""
        return self.session.experiments if self.session else None

    @property
    def best(self) -> Trial | None:
        """The trial that candidates are compared with."""
        return best_so_far(self.trials)

    @property
    def gain(self) -> float | None:
        """How far the best lies below the baseline; None before there is one."""
        if self.best is None or self.best.val_bpb is None or self.trials[0].val_bpb is None:
            return None
        return self.trials[0].val_bpb - self.best.val_bpb

    @property
    def cost(self) -> float:
        """Money so far."""
        return sum(trial.cost for trial in self.trials)

    def spent(self) -> float:
        """Seconds so far, earlier processes included."""
        return self.spent_s + time.monotonic() - self.since

    def seconds_left(self) -> float | None:
        """From the mean time of the rows so far and what the caps leave; None before the first row or without caps."""
        if self.session is None or self.why:
            return None
        left = [] if self.session.seconds is None else [max(0.0, self.session.seconds - self.spent())]
        if self.total is not None and self.trials:
            each = self.spent() / len(self.trials)
            left.append(max(0.0, each * (self.total - self.done)))
        return min(left) if left else None

    # For other processes

    def as_json(self) -> dict[str, Any]:
        """With the keys that `ratchet status` reads of every run: step, stop_step, seconds_left, pid, at."""
        with self.lock:
            session = self.session
            told = {} if session is None else {**asdict(session), "trials": [], "folder": str(session.folder or "")}
            return {
                "step": self.done,
                "stop_step": self.total if self.total is not None else self.done,
                "seconds_left": self.seconds_left() or 0.0,
                "pid": os.getpid(),
                "at": time.time(),
                "session": told,
                "trials": [asdict(trial) for trial in self.trials],
                "attempts": {str(number): asdict(attempt) for number, attempt in self.attempts.items()},
                "notes": list(self.notes),
                "why": self.why,
                "spent_s": self.spent(),
            }

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Board:
        """Back from JSON."""
        session = Session(**{**told["session"], "trials": (), "folder": None}) if told["session"] else None
        return cls(
            session=session,
            trials=[Trial(**{**each, "status": Status(each["status"])}) for each in told["trials"]],
            attempts={int(number): Attempt(**attempt) for number, attempt in told["attempts"].items()},
            notes=deque(told["notes"], maxlen=NOTES),
            why=told["why"],
            spent_s=told["spent_s"],
            since=time.monotonic() - max(0.0, time.time() - told["at"]),
        )
