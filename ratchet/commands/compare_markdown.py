"""A comparison of two versions as Markdown for a pull request: what differs, short enough for a forge's comment.

What stands in it may be a stranger's: values are shown as code, so that they neither format, link nor call anybody.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ratchet.commands.differences import Comparison, cells, difference, sentence
from ratchet.commands.versions import Version

LONGEST_CELL = 80
MOST_ROWS = 40
LONGEST_DIFF = 30_000
"""Characters; with two full tables and the rest it is below the 65,536 that GitHub takes in a comment."""


def page(a: Version, b: Version, found: Comparison) -> str:
    """The gain, the metrics and parameters that differ, the arena's diff, and what was not compared."""
    differ = [row for row in found.figures if row[1].value != row[2].value]
    parts = [
        f"A is {code(a.name)}, {code(a.what)}; B is {code(b.name)}, {code(b.what)}.",
        sentence(found.gain) if found.gain is not None else "",
        _table("metric", [cells(*row) for row in differ]),
        f"{len(found.figures) - len(differ)} of {len(found.figures)} metrics are the same.",
        _table("parameter", [(*row, difference(*row[1:])) for row in found.params]),
        _folded("arena/train.py", found.diff),
        "\n".join(f"- not compared: {code(line)}" for line in found.without[:MOST_ROWS]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def code(value: Any) -> str:
    """A value on one line of a table, as code."""
    text = re.sub(r"[\s`|]+", " ", f"{value}").strip() or " "
    return f"`{text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 1] + '…'}`"


def _table(what: str, rows: Sequence[tuple[str, Any, Any, str]]) -> str:
    """Of name, A's value, B's, and how far they are apart."""
    if not rows:
        return ""
    lines = [f"| {what} | A | B | B - A |", "|---|--:|--:|--:|"]
    lines += [
        f"| {code(name)} | {code(one)} | {code(other)} | {apart} |" for name, one, other, apart in rows[:MOST_ROWS]
    ]
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
