"""The report's sections show what a person should see, escaped, warnings first; a good result shows none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import made_session
from made_result import facts_of
from ratchet.report import markup, research_section, sections
from ratchet.report.session import SessionFacts
from ratchet.report.session import read as read_session
from ratchet.tables.findings import Found, Severity

EVIL = "<script>alert(1)</script>"


def session_of(root: Path, made: list[dict], *, carries_over: bool = True) -> SessionFacts:
    made_session.make_session(root, made=made, carries_over=carries_over)
    return read_session(root / "data/iterate", json.loads((root / "metrics/iterate.json").read_text()))


def test_findings_are_escaped_and_warnings_come_first() -> None:
    note = Found(Severity.NOTE, "slow", EVIL, "look at it")
    page = markup.findings([note, Found(Severity.WARNING, EVIL, "numbers", "mend it")])
    assert EVIL not in page
    assert page.index("Alert: &lt;script&gt;") < page.index("Note: slow.")
    assert "Numbers. Mend it.</p>" in page
    assert markup.findings([]) == ""


def test_section_on_training_tells_a_jump_and_a_good_one_tells_nothing(result: Path) -> None:
    told = facts_of(result)
    assert "<strong>" not in sections.training(told, 0.03)
    scale = told.history["lr_scale"].mask(told.history["step"].between(61, 91), 0.1)
    page = sections.training(replace(told, history=told.history.assign(lr_scale=scale)), 0.03)
    assert page.startswith(
        '<p class="note"><strong>Alert: the learning rate jumps.</strong> Its multiplier goes from 1 '
    )


def test_section_on_research_tells_a_dead_proposer_and_says_once_that_the_gain_is_lost(tmp_path: Path) -> None:
    made = made_session.rows()
    good = research_section.research(session_of(tmp_path / "good", made))
    assert "Alert:" not in good
    for row in made[-7:]:
        row |= {"status": "crash", "val_bpb": None, "delta": None, "reason": EVIL}
    page = research_section.research(session_of(tmp_path / "bad", made, carries_over=False))
    assert page.count("does not carry over") == 1
    assert "<strong>Alert: the proposer has no new ideas.</strong> All of the last 7 experiments crashed" in page
    assert EVIL not in page
