"""One record of history.json: every published field for every step, the skipped ones too, and ours behind them.

Knows names; refuses to know how a step was made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ratchet.loops.skill.gate import Gate, Verdict
from ratchet.loops.skill.horizon import Place
from ratchet.loops.skill.records import Edit, Kind, Patch, Scores, Usage
from ratchet.loops.skill.reflect import Reflection
from ratchet.loops.skill.state import State, Version
from ratchet.loops.skill.update import Candidate, summary

PHASES = ("rollout", "reflect", "aggregate", "select", "update", "evaluate")
TIME_FIELDS = ("timing", "wall_time_s")
"""What differs between two runs of the same thing."""


@dataclass(frozen=True)
class Made:
    """All that one step's phases gave, slow_update and meta_skill included."""

    place: Place
    rolled: Scores
    reflection: Reflection
    merged: Patch
    chosen: Sequence[Edit]
    candidate: Candidate
    version: Version
    """The candidate as evaluated; the present document when there was nothing to evaluate."""
    verdict: Verdict
    budget: int
    analyst: Usage
    rollout: Usage
    slow: Mapping[str, Any] | None = None
    """What slow_update came to; None when it was not due."""


def record(made: Made, after: State, gate: Gate, timing: Mapping[str, float], seconds: float) -> dict[str, Any]:
    """The record of a step that left the state `after`."""
    place, verdict, selection = made.place, made.verdict, made.version.scores
    assert selection is not None
    return {
        "step": place.step,
        "epoch": place.epoch,
        "step_in_epoch": place.step_in_epoch,
        "timing": dict(timing),
        "tokens": {"analyst": made.analyst.public(), "rollout": made.rollout.public()},
        "rollout_hard": made.rolled.hard,
        "rollout_soft": made.rolled.soft,
        "rollout_n": made.rolled.n,
        "n_patches": len(made.reflection.patches),
        "n_failure_patches": made.reflection.count(Kind.FAILURE),
        "n_success_patches": made.reflection.count(Kind.SUCCESS),
        "n_edits_merged": len(made.merged.edits),
        "n_edits_ranked": len(made.chosen),
        "edit_budget": made.budget,
        "lr_control_mode": "fixed",
        "support_counts": [edit.support for edit in made.chosen],
        "candidate_hash": made.version.hash,
        "candidate_skill_len": len(made.version.text),
        "edit_apply_summary": summary(made.candidate.applied),
        "selection_hard": selection.hard,
        "selection_soft": selection.soft,
        "gate_metric": str(gate.metric),
        "candidate_gate_score": verdict.score,
        "action": str(verdict.action),
        "current_score": after.current.score,
        "best_score": after.best.score,
        "best_step": after.best.step,
        "current_origin": after.current.origin,
        "best_origin": after.best.origin,
        "skill_len": len(after.current.text),
        "wall_time_s": seconds,
        **_ours(made, after, gate),
    }


def _ours(made: Made, after: State, gate: Gate) -> dict[str, Any]:
    """What the published record lacks."""
    selection = made.version.scores
    total = after.analyst + after.rollout
    return {
        "rollout_contains": made.rolled.contains,
        "selection_contains": selection.contains if selection else None,
        "gate_rule": str(gate.rule),
        "gate_delta": made.verdict.delta,
        "gate_p": made.verdict.p,
        "gate_reason": made.verdict.reason,
        "cost": made.analyst.money + made.rollout.money,
        "cumulative": {**total.public(), "cost": total.money},
        "extension": made.place.extension,
        "slow_update": made.slow,
    }


def without_time(row: Mapping[str, Any]) -> dict[str, Any]:
    """`row` as two runs of the same thing must agree on it."""
    return {key: value for key, value in row.items() if key not in TIME_FIELDS}
