"""What a session tells those who watch it: the terminal view, Weights & Biases, the progress file. Nobody answers.

Knows the moments of an experiment; refuses to know who listens. A listener that fails is dropped with one warning: no
night's work ends because somebody could not draw it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ratchet.core.errors import first_line
from ratchet.loops.research.records import Trial
from ratchet.tables.findings import Found


@dataclass(frozen=True, kw_only=True)
class Session:
    """What is known when a session begins or goes on. Caps count from its very first experiment; None = no cap.

    `trials`: rows that are finished already (a resumed session), the baseline first. `spent_s`: seconds used before.
    """

    tag: str
    proposer: str
    isolation: str
    experiments: int | None = None
    """Experiments beside the baseline."""
    seconds: float | None = None
    money: float | None = None
    trials: tuple[Trial, ...] = ()
    spent_s: float = 0.0
    folder: Path | None = None
    """The run directory: what other processes read of the session lies there."""


class Events(Protocol):
    """The moments of a session, in the order in which they happen.

    `number` is the place of the experiment's row in results.tsv: 0 is the baseline, experiments count from 1. In a
    round of several, moments of different numbers mix, from different threads; those of one number keep their order.
    """

    def began(self, session: Session) -> None:
        """Before the first experiment of this process."""
        ...

    def proposing(self, number: int) -> None:
        """The proposer is asked."""
        ...

    def started(self, number: int, description: str) -> None:
        """Training starts; again for each seed of the baseline, confirmation and repair: `description` says which."""
        ...

    def progressed(self, number: int, step: int, of: int) -> None:
        """`step` of `of` training steps are done. May be called as often as one likes."""
        ...

    def trained(self, number: int, seconds: float) -> None:
        """Training ended well after `seconds`; judging starts."""
        ...

    def judged(self, number: int, val_bpb: float) -> None:
        """The judge's figure."""
        ...

    def decided(self, number: int, trial: Trial) -> None:
        """The row is in the ledger."""
        ...

    def noted(self, text: str) -> None:
        """One line about the session itself: the noise is measured, a stop was asked for, the test split is judged."""
        ...

    def found(self, findings: Sequence[Found]) -> None:
        """What a person should see in the session, which is published."""
        ...

    def ended(self, why: str) -> None:
        """Nothing follows from this process."""
        ...


class Everyone:
    """Tells every listener; itself an Events."""

    def __init__(self, *listeners: Events) -> None:
        self._listeners = list(listeners)

    def began(self, session: Session) -> None:
        """See Events."""
        self._tell(lambda each: each.began(session))

    def proposing(self, number: int) -> None:
        """See Events."""
        self._tell(lambda each: each.proposing(number))

    def started(self, number: int, description: str) -> None:
        """See Events."""
        self._tell(lambda each: each.started(number, description))

    def progressed(self, number: int, step: int, of: int) -> None:
        """See Events."""
        self._tell(lambda each: each.progressed(number, step, of))

    def trained(self, number: int, seconds: float) -> None:
        """See Events."""
        self._tell(lambda each: each.trained(number, seconds))

    def judged(self, number: int, val_bpb: float) -> None:
        """See Events."""
        self._tell(lambda each: each.judged(number, val_bpb))

    def decided(self, number: int, trial: Trial) -> None:
        """See Events."""
        self._tell(lambda each: each.decided(number, trial))

    def noted(self, text: str) -> None:
        """See Events."""
        self._tell(lambda each: each.noted(text))

    def found(self, findings: Sequence[Found]) -> None:
        """See Events."""
        self._tell(lambda each: each.found(findings))

    def ended(self, why: str) -> None:
        """See Events."""
        self._tell(lambda each: each.ended(why))

    def _tell(self, moment: Callable[[Events], None]) -> None:
        for listener in tuple(self._listeners):
            try:
                moment(listener)
            except Exception as error:  # noqa: BLE001  (the boundary: whatever a watcher raises, the session goes on)
                with suppress(ValueError):  # another thread was first, and said it
                    self._listeners.remove(listener)
                    said = f"iterate: {type(listener).__name__}: {first_line(error)}; going on without it"
                    print(said, file=sys.stderr, flush=True)


def best_so_far(trials: Sequence[Trial]) -> Trial | None:
    """The kept trial that candidates are compared with: the last one kept. None before the baseline."""
    return next((trial for trial in reversed(trials) if trial.status == "keep"), None)
