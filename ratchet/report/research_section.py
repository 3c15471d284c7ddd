"""The report's section on research: what the session came to, experiment by experiment.

Knows what a reader asks of a session, in order; refuses to know files. Descriptions and reasons are of whoever
proposed: they are escaped like all text from data.
"""

from __future__ import annotations

import re
from html import escape
from typing import Any

import pandas as pd

from ratchet.report import course_chart, markup, series
from ratchet.report.markup import Card, Column
from ratchet.report.session import SessionFacts
from ratchet.tables.research_findings import in_research, lost_on_test

ISOLATION = {
    "weak": "weak, candidates were plain processes, which could have read the validation data",
    "container": "container, the validation data was out of the candidates’ reach",
}
HITS = 10


def research(session: SessionFacts) -> str:
    """The whole section."""
    costs = course_chart.cost_chart(session.course)
    hits = _hits(session)
    return (
        f"{_cards(session)}{_test(session)}{_alerts(session)}{course_chart.chart(session.course)}{hits}{_table(session)}"
        f"{costs}{_learned(session)}{_patches(session)}{_next(session)}"
    )


def _cards(session: SessionFacts) -> str:
    told, course = session.metrics, session.course
    test = told.get("test")
    spent = 0.0 if course.cost is None else float(course.cost[-1])
    threshold = told["noise"]["threshold"]
    return markup.cards(
        [
            Card("Best", f"{told['val_bpb']:.4f}", f"bits per byte, from {told['baseline_val_bpb']:.4f}"),
            Card(
                "Gain",
                f"{told['gain']:.4f}",
                f"a candidate had to gain {threshold:.4f}: {told['noise']['seeds']} seeds",
            ),
            Card(
                "Experiments",
                str(told["experiments"]),
                f"{told['kept']} kept, {told['discarded']} discarded, {told['crashed']} crashed",
            ),
            Card(
                "Test split",
                "–" if test is None else f"{test['gain']:.4f}",
                "nothing was kept" if test is None else f"gain, 95 %: {test['lower']:.4f} to {test['upper']:.4f}",
            ),
            Card("Cost", f"{spent:.2f}", f"proposals by {told['proposer']}"),
            Card("Isolation", told["isolation"], "what kept candidates from the judge’s data"),
        ]
    )


def _test(session: SessionFacts) -> str:
    """The verdict on the test split, in one sentence."""
    test = session.metrics.get("test")
    if test is None:
        return '<p class="hint">Nothing was kept, so the test split was not looked at.</p>'
    held = (
        f"{test['baseline_bpb']:.4f} → {test['bpb']:.4f} bits per byte on {series.count(test['documents'], 'document')}"
    )
    if session.carries_over:
        return (
            f'<p class="hint">The gain carries over to the test split, which no gate has seen: {held} '
            f"(95 % of the gain: {test['lower']:.4f} to {test['upper']:.4f}). Isolation: "
            f"{escape(ISOLATION[session.metrics['isolation']])}.</p>"
        )
    return (
        f'<p class="note"><strong>The gain does not carry over to the test split</strong>, which no gate has seen: '
        f"{held}; the 95 % interval of the gain, {test['lower']:.4f} to {test['upper']:.4f}, reaches 0. Isolation: "
        f"{escape(ISOLATION[session.metrics['isolation']])}.</p>"
    )


def _alerts(session: SessionFacts) -> str:
    """What else to see at once; `_test` has said whether the gain carries over."""
    found, said = in_research(session.rows, session.metrics), lost_on_test(session.metrics)
    return markup.findings(each for each in found if each != said)


def _hits(session: SessionFacts) -> str:
    hits = session.course.hits(HITS)
    if not hits:
        return ""
    rows = [
        [
            escape(f"{hit.number}"),
            f"{hit.gain:.4f}",
            f"{100 * hit.share:.0f} %",
            f"{hit.val_bpb:.4f}",
            escape(hit.description),
            f"<code>{escape(hit.commit)}</code>",
        ]
        for hit in hits
    ]
    heads = ("Experiment", "Gain", "Of all gain", "Bits per byte", "What it tried", "Commit")
    return "<h3>Largest improvements</h3>" + markup.plain_table(heads, rows, caption="Largest improvements")


def _table(session: SessionFacts) -> str:
    columns = (
        *map(Column, ("No.", "Bits per byte", "Gain", "Lines", "Seconds", "Cost")),
        *(Column(name, text=True) for name in ("Status", "What it tried", "Why", "Commit")),
    )
    rows = [_row(number, row) for number, row in enumerate(session.rows.to_dict("records"))]
    table = markup.sortable(columns, rows, caption="Experiments", sorted_by=-1)
    return markup.searchable(table, "experiments", len(rows))


def _row(number: int, row: dict[Any, Any]) -> list[object]:
    seconds = None if pd.isna(row["seconds"]) else round(row["seconds"])
    numbers = (row["val_bpb"], row["delta"], row["diff_lines"], seconds, row["cost"])
    said = (row["status"], row["description"], row["reason"], row["commit"])
    return [
        number,
        *(None if each is None or pd.isna(each) else each for each in numbers),
        *("" if pd.isna(s) else s for s in said),
    ]


def _learned(session: SessionFacts) -> str:
    return markup.details("What was learned", f'<div class="said">{markdown(session.learned)}</div>')


def markdown(text: str) -> str:
    """The little of Markdown that learned.md uses (headings, lists, code, bold, backslashes), as escaped HTML."""
    parts: list[str] = []
    for block in re.split(r"\n\s*\n", text.strip()):
        lines = block.splitlines()
        if lines and all(line.startswith("- ") for line in lines):
            parts.append(f"<ul>{''.join(f'<li>{_inline(line[2:])}</li>' for line in lines)}</ul>")
        elif block.startswith("#"):
            head, _, rest = block.partition("\n")
            parts.append(f"<h4>{_inline(head.lstrip('# '))}</h4>" + (markdown(rest) if rest.strip() else ""))
        elif block:
            parts.append(f"<p>{_inline(' '.join(lines))}</p>")
    return "".join(parts)


def _inline(text: str) -> str:
    """Code and bold; a backslash before a sign means the sign."""
    kept: list[str] = []

    def keep(found: re.Match[str]) -> str:
        kept.append(escape(found.group(1)))
        return f"\0{len(kept) - 1}\0"

    text = re.sub(r"\\([\\`*_{}\[\]<>#|!~-])", keep, text.replace("\0", ""))
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
    text = re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", text)
    return re.sub("\0(\\d+)\0", lambda found: kept[int(found.group(1))], text)


def _patches(session: SessionFacts) -> str:
    inside = "".join(markup.details(name, markup.diff(patch)) for name, patch in session.patches.items())
    return markup.details(f"The kept changes ({len(session.patches)})", inside) if inside else ""


def _next(session: SessionFacts) -> str:
    if not session.metrics["kept"]:
        return ""
    tag = session.metrics["tag"]
    command = f"ratchet promote {tag}    # brings the best arena into the checkout, as a commit with its evidence"
    return markup.command(command)
