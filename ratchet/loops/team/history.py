"""The rows of a training as its history's schema has them, and what a person should see in them.

Refuses to know where rows come from and where they go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ratchet.tables import team_history
from ratchet.tables.findings import Found
from ratchet.tables.team_findings import in_team

Rows = Sequence[Mapping[str, Any]]


def history(rows: Rows, agents: int) -> list[dict[str, Any]]:
    """history.json: of each row what a rerun repeats."""
    names = team_history.schema(agents).columns
    return [{name: row[name] for name in names} for row in rows]


def found_in(rows: Rows, agents: int, max_new_tokens: int, held_out: Mapping[str, Any] | None, where: Path
             ) -> list[Found]:  # fmt: skip
    """The findings on `rows`, none of which is of time. Raises InputError or TableError naming `where`."""
    return in_team(team_history.check(history(rows, agents), where), max_new_tokens, held_out)
