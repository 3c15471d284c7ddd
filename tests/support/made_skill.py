"""A made-up skill training: an agent that learns a little, without a model; the files are those of the stage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ratchet.core import atomic

SEED, BEST = 0.031, 0.641
TEST_TASKS = 64
ACTIONS = ("accept_new_best", "reject", "accept_new_best", "skip_no_patches")
ALERTS = [{"severity": "warning", "what": "the gate is <b>made up</b>", "evidence": "4 of 4", "do": "laugh"}]
EXAMPLES = ("Q: What is the chemical symbol of iron?\nA: Fe", "Q: What is the chemical symbol of tin?\nA: Sn")


def usage(calls: int, prompt: int, completion: int) -> dict[str, int]:
    return {"calls": calls, "prompt_tokens": prompt, "completion_tokens": completion}


def record(step: int, action: str, score: float, best: float, best_step: int) -> dict[str, Any]:
    """A record of history.json."""
    skipped = action == "skip_no_patches"
    return {
        "step": step, "epoch": 1 + (step - 1) // 2, "step_in_epoch": 1 + (step - 1) % 2,
        "timing": {f"{name}_s": 1.5 for name in ("rollout", "reflect", "aggregate", "select", "update", "evaluate")},
        "tokens": {"analyst": usage(0, 0, 0), "rollout": usage(40, 4000 + 900 * step, 160)},
        "rollout_hard": 0.1 * step, "rollout_soft": 0.12 * step, "rollout_n": 14, "n_patches": 0 if skipped else 2,
        "n_failure_patches": 0 if skipped else 2, "n_success_patches": 0, "n_edits_merged": 0 if skipped else 6,
        "n_edits_ranked": 0 if skipped else 2, "edit_budget": 7 - step, "lr_control_mode": "fixed",
        "support_counts": [], "candidate_hash": f"{step:016x}", "candidate_skill_len": 90 * step,
        "edit_apply_summary": {"total": 2, "applied": 1, "skipped": 1, "errors": 0}, "selection_hard": score,
        "selection_soft": score, "gate_metric": "hard", "candidate_gate_score": score, "action": action,
        "current_score": best, "best_score": best, "best_step": best_step, "current_origin": f"step_{best_step}",
        "best_origin": f"step_{best_step}", "skill_len": 90 * step, "wall_time_s": 9.0, "gate_p": 0.01,
        "extension": False,
    }  # fmt: skip


def edits(step: int, action: str) -> dict[str, Any]:
    """What data/skill/edits/step_NNNN.json holds."""
    found = [
        {"op": "append", "content": EXAMPLES[step % 2], "target": "", "reason": "said 'Iron <b>'", "support": 2,
         "status": "applied"},
        {"op": "delete", "content": "", "target": "Q: gone\nA: x", "reason": "parroted", "support": 1,
         "status": "no_match"},
    ]  # fmt: skip
    return {"step": step, "action": action, "gate_reason": "p = 0.01", "edits": [] if step == 4 else found}


def scores(hard: float) -> dict[str, Any]:
    return {"hard": hard, "soft": hard, "contains": min(1.0, hard + 0.1), "n": TEST_TASKS}


def metrics(steps: int) -> dict[str, Any]:
    """metrics/skill.json."""
    tested = {
        name: scores(hard)
        | {"hard_interval": [hard - 0.03, hard + 0.1], "contains_interval": [hard, min(1.0, hard + 0.2)]}
        for name, hard in (("seed", SEED), ("best", BEST))
    }
    return {
        "steps": steps, "horizon_steps": steps, "finished": True, "tasks": {"train": 28, "val": 26, "test": TEST_TASKS},
        "best_step": 3, "best_origin": "step_3", "skill_len": 90, "val": {"seed": scores(0.04), "best": scores(0.7)},
        "test": {**tested, "gain": {"hard": BEST - SEED, "p": 1e-9}},
    }  # fmt: skip


def make_skill(root: Path) -> None:
    """Write data/skill and metrics/skill.json below `root`."""
    folder = root / "data/skill"
    (folder / "edits").mkdir(parents=True)
    best, best_step, history = 0.04, 0, []
    for step, action in enumerate(ACTIONS, 1):
        score = best + 0.33 if action == "accept_new_best" else best - 0.01 * (action == "reject")
        if action == "accept_new_best":
            best, best_step = score, step
        history.append(record(step, action, score, best, best_step))
        atomic.write_json(folder / f"edits/step_{step:04d}.json", edits(step, action))
    told = metrics(len(history))
    atomic.write_json(folder / "history.json", history)
    more = {"baseline": {"gate_score": 0.04}, "cost": 0.0, "seconds": 36.0, "ended": "step 4 of 4"}
    atomic.write_json(folder / "summary.json", told | more | {"alerts": ALERTS})
    text = "\n\n".join(EXAMPLES) + "\n"
    (folder / "best_skill.md").write_text(text, encoding="utf-8")
    lines = "".join(f"+{line}\n" for line in text.splitlines())
    (folder / "skill.diff").write_text(f"--- seed_skill.md\n+++ best_skill.md\n{lines}", encoding="utf-8")
    (root / "metrics").mkdir(exist_ok=True)
    (root / "metrics/skill.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
