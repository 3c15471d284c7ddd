"""learned.md: what a session tried and what came of it, for a person to read. Text alone, from rows and metrics.

Descriptions are the proposer's and reasons may quote a candidate: both are untrusted and shown as plain data.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.loops.research.records import Status, Trial
from ratchet.tables.metrics import carries_over

NEAR_MISSES = 5


def learned(trials: Sequence[Trial], metrics: Mapping[str, Any]) -> str:
    """The page. `trials`: the baseline first; `metrics`: metrics/iterate.json."""
    parts = [
        f"# What session {plain(metrics['tag'])} learned",
        _summary(metrics),
        _test(metrics),
        _section("Kept", [_line(trial) for trial in trials[1:] if trial.status is Status.KEEP], "Nothing was kept."),
        _section("Closest of those discarded", [_line(trial) for trial in _near(trials)], "Nothing came near."),
        _section("Made it worse", [_line(trial) for trial in _worse(trials)], "Nothing did."),
        _section("Crashed", [_line(trial) for trial in trials if trial.status is Status.CRASH], "Nothing crashed."),
    ]
    return "\n\n".join(parts) + "\n"


def _summary(metrics: Mapping[str, Any]) -> str:
    noise = metrics["noise"]
    lines = [
        f"{metrics['experiments']} experiments by `{plain(metrics['proposer'])}`: {metrics['kept']} kept "
        f"({metrics['progress']} as progress), {metrics['discarded']} discarded, {metrics['crashed']} crashed. "
        f"It ended because {plain(metrics['ended'])}.",
        f"val_bpb {metrics['baseline_val_bpb']:.6f} → {metrics['val_bpb']:.6f}, a gain of {metrics['gain']:.6f}. "
        f"The same arena with another seed moves by {noise['sd']:.6f} (sd over {noise['seeds']} seeds), so a gain "
        f"counted only above {noise['threshold']:.6f}. Isolation: {metrics['isolation']}.",
    ]
    return "\n\n".join(lines)


def _test(metrics: Mapping[str, Any]) -> str:
    test = metrics.get("test")
    if not test:
        return "The test split was not looked at: nothing was kept."
    interval = f"{test['gain']:.6f} (95 % {test['lower']:.6f} to {test['upper']:.6f}, {test['documents']} documents)"
    held = f"On the test split, which no gate has seen: {test['baseline_bpb']:.6f} → {test['bpb']:.6f}, a gain of "
    if carries_over(metrics):
        return f"{held}{interval}. **The gain carries over.**"
    return f"{held}{interval}. **The gain does not carry over**: its interval reaches 0."


def _section(title: str, lines: Sequence[str], otherwise: str) -> str:
    return f"## {title}\n\n" + ("\n".join(lines) if lines else otherwise)


def _near(trials: Sequence[Trial]) -> list[Trial]:
    """Discarded candidates that scored better than their incumbent, the largest gain first."""
    better = [trial for trial in trials if trial.status is Status.DISCARD and (trial.delta or 0.0) > 0]
    return sorted(better, key=lambda trial: -(trial.delta or 0.0))[:NEAR_MISSES]


def _worse(trials: Sequence[Trial]) -> list[Trial]:
    """Discarded candidates that scored worse, by more than the noise, the worst first."""
    worse = [
        trial for trial in trials
        if trial.status is Status.DISCARD and trial.delta is not None and trial.delta < -(trial.noise or 0.0)
    ]  # fmt: skip
    return sorted(worse, key=lambda trial: trial.delta or 0.0)


def _line(trial: Trial) -> str:
    gain = "" if trial.delta is None else f", gain {trial.delta:+.6f}"
    return f"- `{trial.commit or '-'}` {plain(trial.description)}{gain}: {plain(trial.reason)}"


def plain(text: str) -> str:
    """`text` so that markdown shows its letters and nothing else."""
    return re.sub(r"([\\`*_{}\[\]<>#|!~])", r"\\\1", text)
