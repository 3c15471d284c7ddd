"""Small pieces of HTML: pairs, tables, cards. Every text that comes in is escaped here, once.

Knows elements; refuses to know what they say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from ratchet.report import series
from ratchet.tables.findings import Found, Severity

PATCH_LINES = 400


class Card(NamedTuple):
    """A figure with its name above and a remark below."""

    name: str
    value: str
    remark: str


class Column(NamedTuple):
    """A column of a table that sorts: `text` columns are read from the left."""

    name: str
    text: bool = False


def cards(items: Iterable[Card]) -> str:
    """A row of cards."""
    inside = "".join(
        f"<div><dt>{escape(card.name)}</dt><dd>{escape(card.value)}<small>{escape(card.remark)}</small></dd></div>"
        for card in items
    )
    return f'<dl class="cards">{inside}</dl>'


def pairs(title: str, values: Mapping[str, Any]) -> str:
    """A panel of names and values."""
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(written(value))}</dd>" for name, value in values.items())
    return f'<div class="panel"><h3>{escape(title)}</h3><dl class="pairs">{rows}</dl></div>'


def sortable(columns: Sequence[Column], rows: Iterable[Sequence[object]], *, caption: str, sorted_by: int) -> str:
    """A table whose head sorts it (largest first in column `sorted_by` now); numbers carry their full value."""
    heads = "".join(_head(column, index == sorted_by) for index, column in enumerate(columns))
    body = "".join(f"<tr>{''.join(map(_cell, columns, row))}</tr>" for row in rows)
    return scrolling(f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>", caption)


def searchable(table: str, what: str, rows: int) -> str:
    """A table of `rows` rows that sorts, below a field that shows the `what` with the words typed."""
    field = f"filter-{what}"
    return (
        f'<div class="experiments" data-rows="{what}"><div class="tools"><label for="{field}">'
        f'Show the {what} with these words<input type="search" id="{field}" autocomplete="off" '
        f'spellcheck="false"></label><output class="count" for="{field}" aria-live="polite">{rows} rows</output>'
        f"</div>{table}</div>"
    )


def plain_table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str, numbers: bool = False) -> str:
    """A table of HTML cells (already escaped) that is only read; the first cell of a row is its name."""
    look = "" if numbers else ' class="text"'
    first_head, *other_heads = heads
    head = f'<th scope="col" class="text">{escape(first_head)}</th>'
    head += "".join(f'<th scope="col"{look}>{escape(name)}</th>' for name in other_heads)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td{look}>{cell}</td>" for cell in rest)}</tr>'
        for first, *rest in rows
    )
    return scrolling(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>", caption)


def scrolling(inside: str, name: str, look: str = "scroll") -> str:
    """A box that scrolls; it has a name and takes the focus, or the keyboard could not scroll it."""
    return f'<div class="{look}" tabindex="0" role="region" aria-label="{escape(name)}">{inside}</div>'


def command(text: str) -> str:
    """A block of commands with a button that copies it."""
    return (
        f'<div class="command"><pre><code>{escape(text)}</code></pre><button type="button" hidden>Copy</button></div>'
    )


def diff(patch: str) -> str:
    """The first `PATCH_LINES` lines of a unified diff, what it adds and takes away marked."""
    lines = patch.splitlines()
    more = f"\n… {len(lines) - PATCH_LINES} more lines" if len(lines) > PATCH_LINES else ""
    marks = {"+": "ins", "-": "del"}
    shown = "\n".join(
        f"<{marks[line[0]]}>{escape(line)}</{marks[line[0]]}>" if line[:1] in marks else escape(line)
        for line in lines[:PATCH_LINES]
    )
    return f'<pre class="diff" tabindex="0">{shown}{more}</pre>'


def details(summary: str, inside: str) -> str:
    """A part that opens on demand; `inside` is HTML."""
    return f"<details><summary>{escape(summary)}</summary>{inside}</details>"


def findings(found: Iterable[Found]) -> str:
    """A paragraph each, warnings first."""
    ordered = sorted(found, key=lambda one: one.severity is not Severity.WARNING)
    return "".join(
        f'<p class="note"><strong>{"Alert" if one.severity is Severity.WARNING else "Note"}: {escape(one.what)}.'
        f"</strong> {escape(_sentence(one.evidence))} {escape(_sentence(one.do))}</p>"
        for one in ordered
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def written(value: object) -> str:
    """A value as a person reads it."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return series.short(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {written(leaf)}" for key, leaf in value.items()) or "–"
    if isinstance(value, list | tuple):
        return ", ".join(map(written, value)) or "–"
    return str(value)


def _head(column: Column, is_sorted: bool) -> str:
    order = ' aria-sort="descending"' if is_sorted else ""
    kind, look = ("text", ' class="text"') if column.text else ("number", "")
    return f'<th scope="col" data-type="{kind}"{look}{order}><button type="button">{escape(column.name)}</button></th>'


def _cell(column: Column, value: object) -> str:
    if column.text:
        return f'<td class="text">{escape(str(value))}</td>'
    if value is None:
        return '<td data-value="-Infinity">–</td>'
    shown = f"{value:.4f}" if isinstance(value, float) else f"{value:,}"
    return f'<td data-value="{value!r}">{shown}</td>'
