"""The report: one HTML page that holds everything it shows and asks no network for anything.

Knows the order of the page; refuses to know where the facts come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from html import escape

from ratchet.report import data_section, sections
from ratchet.report.facts import Facts
from ratchet.report.palette import DARK, LIGHT, Palette
from ratchet.report.research_section import research
from ratchet.report.skill_section import skill
from ratchet.report.team_section import team

CONTENT_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""The browser itself refuses whatever the page would fetch; a picture is one that the page holds."""


def build(facts: Facts, *, smoothing: float, documents: int, style: str, script: str) -> str:
    """The page of one result: the same facts give the same text.

    `smoothing`: share of the run that the bold curves average over. `documents`: rows of its table; 0 = all.
    `style`, `script`: what page.css and page.js hold; the stage names both files as inputs, so that DVC sees them.
    """
    parts = [
        ("Research", "What was tried on the arena, and what the judge made of it.", research(facts.session)),
        ("Skill", "What a frozen agent’s document of instructions was trained to.", skill(facts.skill)),
        ("Team", "What agents that share a reward came to earn together.", team(facts.team)),
        ("Training", "What the optimizer saw, step by step.", sections.training(facts, smoothing)),
        ("Speed", "Measured on one machine; a rerun gives other figures.", sections.speed(facts, smoothing)),
        ("Documents", "Each validation document, judged once.", sections.documents(facts, documents)),
        ("Data", "What the stages before training recorded.", data_section.data(facts)),
        ("Lineage", "Who read what. The codes begin DVC’s hashes.", sections.lineage(facts)),
        ("Provenance", "Which code, environment and machine made each part.", sections.provenance(facts)),
        ("Reproduce", "The commands that make this very result again.", sections.reproduce(facts)),
    ]
    header = f'<header id="result"><h1>Result of one run</h1>{sections.result(facts)}</header>{sections.figures(facts)}'
    foot = "Written by the stage <code>plot</code>. This page is complete: it loads nothing."
    return shell(f"{facts.metrics['evaluate']['val_bpb']:.4f} bits per byte", header, parts, foot, style, script)


def shell(title: str, header: str, parts: Sequence[tuple[str, str, str]], foot: str, style: str, script: str) -> str:
    """A whole page: `parts` are the sections as title, what it is in a sentence, and its HTML."""
    links = "".join(f'<li><a href="#{name.lower()}">{name}</a></li>' for name, _, _ in parts)
    body = "".join(
        f'<section id="{name.lower()}" aria-labelledby="{name.lower()}-title">'
        f'<h2 id="{name.lower()}-title">{name}</h2><p>{says}</p>{inside}</section>'
        for name, says, inside in parts
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{CONTENT_POLICY}">
<title>Ratchet: {escape(title)}</title>
<style>{_colours(":root", LIGHT)}
@media (prefers-color-scheme: dark) {{ {_colours(":root", DARK)} }}
@media print {{ {_colours(":root", LIGHT)} }}
{style}</style>
</head>
<body>
<a class="skip" href="#result">Skip to the result</a>
<nav aria-label="Sections"><ul><li><b>Ratchet</b></li>{links}</ul></nav>
<main>
{header}
{body}
<footer>{foot}</footer>
</main>
<script>{script}</script>
</body>
</html>
"""


def _colours(selector: str, palette: Palette) -> str:
    values = "; ".join(f"--{field.name}: {getattr(palette, field.name)}" for field in fields(palette))
    return f"{selector} {{ {values} }}"
