"""The report's section on a team training: what the agents came to earn, their curves, what they said.

Knows what a reader asks of a training, in order; refuses to know files. What agents said is untrusted text: it is
stripped of what hides or steers, cut and escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ratchet.llm.untrusted import one_line
from ratchet.report import markup, series, team_curves
from ratchet.report.markup import Card
from ratchet.report.team import TeamFacts

SAMPLES = 6
"""Samples of an epoch that are shown."""
LETTERS = 300
"""Letters of a prompt or a completion that are shown."""


def team(facts: TeamFacts) -> str:
    """The whole section."""
    return (
        f"{_cards(facts)}{_verdict(facts)}{markup.findings(facts.alerts)}"
        f"{team_curves.charts(facts.history, facts.resumes, facts.max_new_tokens)}{_samples(facts)}"
    )


def headline(facts: TeamFacts) -> str:
    """The result in one sentence."""
    rows = facts.history
    trained = f"Team training, task {facts.task}, {series.count(int(rows['env_step'].iloc[-1]), 'env step')}"
    if facts.held_out is None:
        return f"{trained}: training reward {rows['reward_mean'].iloc[0]:.3f} → {rows['reward_mean'].iloc[-1]:.3f}"
    told = facts.held_out
    return f"{trained}: held-out reward {told['untrained']['mean']:.3f} → {told['trained']['mean']:.3f}"


def picture(facts: TeamFacts, *, dpi: int) -> bytes:
    """team_curves.png."""
    return team_curves.draw(facts.history, facts.resumes, facts.max_new_tokens, title=headline(facts), dpi=dpi)


def _cards(facts: TeamFacts) -> str:
    rows, told = facts.history, facts.held_out
    last = rows.iloc[-1]
    return markup.cards(
        [
            Card(
                "Held-out reward",
                "–" if told is None else f"{told['trained']['mean']:.3f}",
                "not looked at yet"
                if told is None
                else f"from {told['untrained']['mean']:.3f}, {told['items']} items × {told['samples']} samples",
            ),
            Card(
                "Rise",
                "–" if told is None else f"{told['rise']['mean']:+.3f}",
                "" if told is None else f"95 %, paired over items: {_interval(told['rise'])}",
            ),
            Card("Epochs", f"{last['epoch']:.3g} of {facts.epochs}", f"task {facts.task}"),
            Card("Env steps", f"{last['env_step']:,.0f}", f"{series.short(float(last['tokens']))} tokens generated"),
            Card("Updates", f"{len(rows):,}", f"{int(rows['skipped_updates'].sum())} optimizer steps left out"),
            Card("Resumes", f"{len(facts.resumes)}", "dashed in the curves" if facts.resumes else "one process"),
        ]
    )


def _interval(estimate: Mapping[str, float]) -> str:
    return f"{estimate['low']:.3f} to {estimate['high']:.3f}"


def _verdict(facts: TeamFacts) -> str:
    """What the held-out items say, in one sentence."""
    told = facts.held_out
    if told is None:
        return '<p class="hint">The held-out items are looked at when training has come to its end.</p>'
    both = f"untrained {_interval(told['untrained'])}, trained {_interval(told['trained'])}"
    if told["rise"]["low"] > 0:
        return f'<p class="hint">The reward rose on items that were not trained on (95 %: {both}).</p>'
    return (
        f'<p class="note"><strong>No rise is shown on items that were not trained on</strong>: its 95 % interval, '
        f"{_interval(told['rise'])}, does not lie above 0 ({both}).</p>"
    )


def _samples(facts: TeamFacts) -> str:
    """What was said, a part that opens for each epoch."""
    epochs: dict[int, list[Mapping[str, Any]]] = {}
    for sample in facts.samples:
        epochs.setdefault(int(sample["epoch"]), []).append(sample)
    if not epochs:
        return ""
    parts = "".join(_epoch(epoch, found) for epoch, found in sorted(epochs.items()))
    return f"<h3>What the agents said</h3>{parts}"


def _epoch(epoch: int, samples: Sequence[Mapping[str, Any]]) -> str:
    agents = max(len(sample["completions"]) for sample in samples)
    heads = ("Item", "Turn", "Reward", *(f"Agent {agent}" for agent in range(agents)))
    rows = [_row(sample, agents) for sample in samples[:SAMPLES]]
    table = markup.plain_table(heads, rows, caption=f"Samples of epoch {epoch}")
    return markup.details(f"Epoch {epoch}: {series.count(len(samples), 'sample')}", table)


def _row(sample: Mapping[str, Any], agents: int) -> list[str]:
    said = [
        f"{_quoted(prompt)} <strong>{_quoted(text) or '(nothing)'}</strong>"
        for prompt, text in zip(sample["prompts"], sample["completions"], strict=True)
    ]
    numbers = [f"{int(sample['item'])}", f"{int(sample['turn']) + 1}", f"{float(sample['reward']):.3f}"]
    return [*numbers, *said, *[""] * (agents - len(said))]


def _quoted(text: object) -> str:
    return escape(one_line(str(text), LETTERS))
