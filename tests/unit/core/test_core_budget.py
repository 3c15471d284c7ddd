"""Budgets: computed from committed rows alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ratchet.core.budget import Budget
from ratchet.core.errors import InputError

ROWS: list[dict[str, Any]] = [
    {"seq": seq, "seconds": 0.5, "calls": 2, "tokens": 100, "money": 0.25} for seq in range(4)
]


@pytest.mark.parametrize(
    ("budget", "seq"),
    [
        (Budget(steps=3), 3),
        (Budget(seconds=1.5), 3),
        (Budget(seconds=1.4), 3),
        (Budget(calls=5), 3),
        (Budget(tokens=300), 3),
        (Budget(money=0.75), 3),
        (Budget(steps=4, money=0.5), 2),
        (Budget(steps=0), 0),
        (Budget(tokens=0), 0),
    ],
)
def test_exhausted_exactly_when_a_cap_is_reached(budget: Budget, seq: int) -> None:
    assert "is used up" in (budget.exhausted(seq, ROWS) or "")
    assert not seq or budget.exhausted(seq - 1, ROWS) is None


def test_exhausted_without_caps_never(tmp_path: Path) -> None:
    assert Budget(stop_file=tmp_path / "stop").exhausted(10**9, ROWS) is None


def test_exhausted_rows_of_an_uncommitted_tail_do_not_count() -> None:
    assert Budget(tokens=300).exhausted(2, ROWS) is None


def test_exhausted_says_which_cap() -> None:
    assert Budget(steps=9, tokens=200).exhausted(2, ROWS) == "the budget of 200 tokens is used up"


def test_exhausted_when_the_stop_file_appears(tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    budget = Budget(stop_file=stop)
    assert budget.exhausted(0, []) is None
    stop.touch()
    assert budget.exhausted(0, []) == "a stop was asked for"


@pytest.mark.parametrize("row", [{}, {"tokens": None}, {"tokens": "5"}])
def test_exhausted_row_without_the_capped_number_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="ledger row 0: tokens is"):
        Budget(tokens=5).exhausted(1, [{"seq": 0} | row])


def test_left_tells_the_rest_of_every_cap() -> None:
    assert Budget(steps=10, tokens=1000, money=2).left(4, ROWS) == {"steps": 6, "tokens": 600, "money": 1.0}
