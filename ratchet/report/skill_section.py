"""The report's section on the skill loop: what the document was trained to, and what each edit came to.

Knows what a reader asks of a training, in order; refuses to know files. Documents, edits and reasons are of whoever
proposed: they are escaped like all text from data.
"""

from __future__ import annotations

import base64
from html import escape
from typing import Any

import pandas as pd

from ratchet.report import markup, series, training_dashboard
from ratchet.report.markup import Card, Column
from ratchet.report.skill import SkillFacts

PICTURE_DPI = 100
SHOWN_LETTERS = 200
"""Of an edit's text in the table; the whole stands in data/skill/edits."""


def skill(facts: SkillFacts) -> str:
    """The whole section."""
    if facts.steps is None:
        return '<p class="hint">A dry run (train_size 0): everything was checked, nobody was asked.</p>'
    return (
        f"{_cards(facts)}{_test(facts)}{markup.findings(facts.alerts)}{_picture(facts)}{_edits(facts)}"
        f"{markup.details('The best document', _document(facts))}"
        f"{markup.details('What changed since the seed document', markup.diff(facts.diff))}"
    )


def headline(facts: SkillFacts) -> str:
    """The result in one sentence."""
    told = facts.metrics
    where = f"after step {told['steps']} of {told['horizon_steps']}"
    if not told.get("test"):
        val = told["val"]
        return f"Skill training {where}: validation {val['seed']['hard']:.3f} → {val['best']['hard']:.3f}, not tested"
    seed, best = told["test"]["seed"], told["test"]["best"]
    return f"Skill training {where}: test exact match {seed['hard']:.3f} → {best['hard']:.3f}, {best['n']} tasks"


def dashboard(facts: SkillFacts, *, dpi: int) -> bytes:
    """training_dashboard.png of a training that took a step."""
    assert facts.steps is not None
    told = [each.sentence for each in facts.alerts]
    return training_dashboard.draw(facts.steps, baseline=facts.baseline, alerts=told, title=headline(facts), dpi=dpi)


def _cards(facts: SkillFacts) -> str:
    told, steps = facts.metrics, facts.steps
    assert steps is not None
    val, test = told["val"], told.get("test")
    accepted = int(steps["action"].str.contains("accept").sum())
    tokens = sum(float(total.iloc[-1]) for total in training_dashboard.cumulative_tokens(steps).values())
    kept = "the seed document" if not told["best_step"] else f"of step {told['best_step']}"
    return markup.cards(
        [
            Card(
                "Test, exact match",
                f"{test['best']['hard']:.3f}" if test else "–",
                f"from {test['seed']['hard']:.3f}, {test['best']['n']} tasks" if test else "not looked at yet",
            ),
            Card(
                "Test, contains",
                f"{test['best']['contains']:.3f}" if test else "–",
                f"from {test['seed']['contains']:.3f}: the reply holds the answer" if test else "not looked at yet",
            ),
            Card("Validation", f"{val['best']['hard']:.3f}", f"from {val['seed']['hard']:.3f}, what the gate saw"),
            Card("Best document", f"{len(facts.document):,}", f"letters, {kept}"),
            Card("Steps", f"{told['steps']} of {told['horizon_steps']}", f"{accepted} accepted by the gate"),
            Card("Cost", f"{facts.summary['cost']:.2f}", f"{series.short(tokens)} tokens"),
        ]
    )


def _test(facts: SkillFacts) -> str:
    """Both documents on the test split, with intervals."""
    test = facts.metrics.get("test")
    if not test:
        ended = escape(str(facts.summary["ended"]))
        return f'<p class="hint">The test split was not looked at: training has not reached its horizon ({ended}).</p>'
    rows = [
        (
            name,
            *(
                cell
                for score in ("hard", "contains")
                for cell in (f"{test[which][score]:.3f}", "{:.3f} to {:.3f}".format(*test[which][f"{score}_interval"]))
            ),
            f"{test[which]['n']}",
        )
        for which, name in (("seed", "Seed document"), ("best", "Best document"))
    ]
    heads = ("On the test split", "Exact match", "95 %", "Contains", "95 %", "Tasks")
    table = markup.plain_table(heads, rows, caption="Seed and best document on the test split", numbers=True)
    gain = test["gain"]
    return (
        f'{table}<p class="hint">The exact match changed by {gain["hard"]:+.3f} on tasks that no step has seen; a gain '
        f"as large comes by chance with p = {gain['p']:.2g}.</p>"
    )


def _picture(facts: SkillFacts) -> str:
    data = base64.b64encode(dashboard(facts, dpi=PICTURE_DPI)).decode()
    says = f"{headline(facts)}. Accuracy, edit budget, tokens and the gate’s decisions, step by step."
    return (
        f'<figure class="panel"><figcaption><h3>Training dashboard</h3><p>{escape(says)}</p></figcaption>'
        f'<img src="data:image/png;base64,{data}" alt="{escape(says)}"></figure>'
    )


def _edits(facts: SkillFacts) -> str:
    """Every selected edit with its status."""
    if facts.edits.empty:
        return '<p class="hint">No edit was proposed.</p>'
    columns = (
        Column("Step"),
        Column("Support"),
        *(Column(name, text=True) for name in ("Step came to", "Operation", "Status", "Content", "Target", "Why")),
    )
    table = markup.sortable(columns, map(_row, facts.edits.to_dict("records")), caption="Edits", sorted_by=-1)
    return f"<h3>Edits</h3>{markup.searchable(table, 'edits', len(facts.edits))}"


def _row(edit: dict[Any, Any]) -> list[object]:
    texts = [_cut(edit[name]) for name in ("content", "target", "reason")]
    return [edit["step"], edit["support"], edit["action"], edit["op"], edit["status"], *texts]


def _cut(text: object) -> str:
    if not isinstance(text, str) or pd.isna(text):
        return ""
    return text if len(text) <= SHOWN_LETTERS else f"{text[: SHOWN_LETTERS - 1]}…"


def _document(facts: SkillFacts) -> str:
    return f'<pre class="diff" tabindex="0">{escape(facts.document) or "(empty)"}</pre>'
