"""How much a loop may use. Computed from the ledger's rows, so that a restart forgets nothing.

Refuses to know what a step is; a budget is checked between steps, never inside one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.core.errors import InputError

COUNTED = ("seconds", "calls", "tokens", "money")


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Caps; None = no cap. `steps` counts rows, the others sum the row's key of the same name (seconds, money ≥ 0)."""

    steps: int | None = None
    seconds: float | None = None
    calls: int | None = None
    tokens: int | None = None
    money: float | None = None
    stop_file: Path | None = None
    """The run ends after the step during which this file appears."""

    def left(self, seq: int, rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
        """What remains of each cap after the committed rows (before `seq`). InputError when one lacks the number."""
        left: dict[str, float] = {} if self.steps is None else {"steps": self.steps - seq}
        caps = {name: cap for name in COUNTED if (cap := getattr(self, name)) is not None}
        committed = [row for row in rows if row["seq"] < seq] if caps else []
        for name, cap in caps.items():
            left[name] = cap - sum(_amount(row, name) for row in committed)
        return left

    def exhausted(self, seq: int, rows: Iterable[Mapping[str, Any]]) -> str | None:
        """Why the loop must end before step `seq`, or None when it may go on."""
        if self.stop_file and self.stop_file.exists():
            return "a stop was asked for"
        for name, left in self.left(seq, rows).items():
            if left <= 0:
                return f"the budget of {getattr(self, name):g} {name} is used up"
        return None


def _amount(row: Mapping[str, Any], name: str) -> float:
    amount = row.get(name)
    if not isinstance(amount, int | float):
        what = f"{name} is {amount!r}, but the budget caps {name}"
        raise InputError(f"ledger row {row['seq']}", what, "write the number in every row, 0 when nothing was used")
    return amount
