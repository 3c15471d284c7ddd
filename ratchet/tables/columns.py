"""Find a column under the names that people give it.

Knows names; refuses to know what a column holds.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import pandas as pd

from ratchet.core.errors import InputError


def find(frame: pd.DataFrame, *names: str, where: object = "table") -> str:
    """The first of `names` that is a column of `frame`; letter case, `-`, `_`, `.`, `/` and spaces do not count.

    Raises InputError with the columns that are there and the nearest of them when none fits.
    """
    present = [str(column) for column in frame.columns]
    plain = {_plain(column): column for column in reversed(present)}
    for name in names:
        if name in present:
            return name
        if _plain(name) in plain:
            return plain[_plain(name)]
    near = nearest(names, present)
    hint = f"did you mean {' or '.join(near)}?" if near else "rename one, or name yours"
    there = ", ".join(present) or "none"
    raise InputError(where, f"no column is called {' or '.join(names)}; the columns are {there}", hint)


def nearest(names: Iterable[str], present: list[str]) -> list[str]:
    """At most three of `present` that resemble one of `names`, best first."""
    plain = {_plain(column): column for column in present}
    scored = {
        column: max(difflib.SequenceMatcher(None, _plain(name), key).ratio() for name in names)
        for key, column in plain.items()
    }
    return [c for c in sorted(scored, key=lambda c: -scored[c]) if scored[c] >= 0.5][:3]


def _plain(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())
