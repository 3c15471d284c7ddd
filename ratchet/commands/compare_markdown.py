"""A comparison of two versions as Markdown for a pull request: what differs, short enough for a forge's comment.

What stands in it may be a stranger's: values are shown as code, so that they neither format, link nor call anybody.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ratchet.commands.compare import Comparison
    from ratchet.commands.versions import Version

LONGEST_CELL = 80
MOST_ROWS = 40
LONGEST_DIFF = 30_000
"""Characters; with two full tables and the rest it is below the 65,536 that GitHub takes in a comment."""


def page(a: Version, b: Version, found: Comparison) -> str:
    """The gain, the metrics and parameters that differ, the arena's diff, and what was not compared."""
    from ratchet.commands.compare import sentence

    differ = [row for row in found.metrics if row[1] != row[2]]
    parts = [
        f"A is {code(a.name)}, {code(a.what)}; B is {code(b.name)}, {code(b.what)}.",
        sentence(found.gain) if found.gain is not None else "",
        _table("metric", differ),
        f"{len(found.metrics) - len(differ)} of {len(found.metrics)} metrics are the same.",
        _table("parameter", found.params),
        _folded("arena/train.py", found.diff),
        "\n".join(f"- not compared: {code(line)}" for line in found.without[:MOST_ROWS]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def code(value: Any) -> str:
    """A value on one line of a table, as code."""
    text = re.sub(r"[\s`|]+", " ", f"{value}").strip() or " "
    return f"`{text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 1] + '…'}`"


def _table(what: str, rows: Sequence[tuple[str, Any, Any]]) -> str:
    from ratchet.commands.compare import difference

    if not rows:
        return ""
    lines = [f"| {what} | A | B | B - A |", "|---|--:|--:|--:|"]
    lines += [f"| {code(name)} | {code(one)} | {code(other)} | {difference(one, other)} |"
              for name, one, other in rows[:MOST_ROWS]]  # fmt: skip
    more = [f"\n… and {len(rows) - MOST_ROWS} more"] if len(rows) > MOST_ROWS else []
    return "\n".join([*lines, *more])


def _folded(title: str, diff: Sequence[str]) -> str:
    """A diff that unfolds, in a fence longer than any run of backticks in it."""
    if not diff:
        return ""
    text = "\n".join(diff)
    if len(text) > LONGEST_DIFF:
        text = text[: text.rfind("\n", 0, LONGEST_DIFF)] + "\n… and more"
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"<details><summary>{title}</summary>\n\n{fence}diff\n{text}\n{fence}\n\n</details>"
