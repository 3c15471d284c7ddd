"""A run's results as files: document, history, edits with their status, diffs, test answers, summary, metrics.

Refuses to know how they came about, and writes nothing half.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ratchet.core import atomic
from ratchet.core.rundir import RunDirectory
from ratchet.loops.skill.gate import sign_flip_p
from ratchet.loops.skill.parameters import SkillParams
from ratchet.loops.skill.records import Row
from ratchet.loops.skill.session import Ending, Request, Tested
from ratchet.loops.skill.state import State
from ratchet.tables import findings, skill_findings, skill_history
from ratchet.tables.findings import Found

Z = 1.96
"""Standard deviations to either side that hold 95 % of a normal distribution."""


@dataclass(frozen=True)
class Published:
    """What a run comes to. `rows`: the ledger's, the seed's evaluation first; `table`: the history, checked."""

    state: State
    table: pd.DataFrame
    rows: list[dict[str, Any]]
    summary: dict[str, Any]
    metrics: dict[str, Any]
    tested: Tested | None
    seed_skill: str
    found: list[Found]

    @property
    def history(self) -> list[dict[str, Any]]:
        """The published records."""
        return records_of(self.rows)


def records_of(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The records of the ledger's steps: all but the seed's evaluation."""
    return [row["record"] for row in rows[1:]]


def gather(
    request: Request, run: RunDirectory, ending: Ending, tested: Tested | None, paid: Mapping[str, Any]
) -> Published:
    """The results of `run` at its newest checkpoint. `paid`: what the records of calls say was spent, by role.

    Raises InputError when there is no step yet.
    """
    state = ending.state
    rows = run.ledger.rows()[: state.step + 1]
    table = skill_history.check(records_of(rows), run.path / "ledger.jsonl", log=f"see {run.path}")
    assert state.baseline is not None
    baseline = rows[0]["record"]["gate_score"]
    params = request.params
    metrics = _metrics(request, ending, tested)
    test, knobs = metrics["test"], params.model_dump(mode="json")
    found = skill_findings.in_skill(table, baseline, knobs, test)
    horizon = request.horizon
    summary = {
        **metrics,
        "ended": ending.why,
        "baseline": {"selection": state.baseline.public(), "gate_score": baseline},
        "steps_per_epoch": horizon.steps_per_epoch,
        "extension": _extension(horizon.steps, state.step, horizon.steps_per_epoch),
        "tokens": {"analyst": state.analyst.public(), "rollout": state.rollout.public()},
        "test_tokens": tested.usage.public() if tested else None,
        "cost": state.analyst.money + state.rollout.money + (tested.usage.money if tested else 0.0),
        "paid": dict(paid),
        "seconds": round(sum(row["seconds"] for row in rows), 3),
        "alerts": findings.plain(found),
        "params": knobs,
    }
    return Published(state, table, rows, summary, metrics, tested, request.seed_skill, found)


def _metrics(request: Request, ending: Ending, tested: Tested | None) -> dict[str, Any]:
    """metrics/skill.json: what is the same on every rerun."""
    state = ending.state
    assert state.baseline is not None
    assert state.best.scores is not None
    return {
        "steps": state.step,
        "horizon_steps": request.horizon.steps,
        "finished": ending.finished,
        "tasks": request.sizes,
        "best_step": state.best.step,
        "best_origin": state.best.origin,
        "skill_len": len(state.best.text),
        "val": {"seed": state.baseline.public(), "best": state.best.scores.public()},
        "test": _test(tested) if tested else None,
    }


def _test(tested: Tested) -> dict[str, Any]:
    """Both documents on the test split, each with its 95 % interval, and the gain with its one-sided p."""
    found: dict[str, Any] = {}
    for name, rolled in (("seed", tested.seed), ("best", tested.best)):
        n = len(rolled.rows)
        found[name] = {
            **rolled.scores.public(),
            "hard_interval": wilson(sum(row.hard for row in rolled.rows), n),
            "contains_interval": wilson(sum(row.contains for row in rolled.rows), n),
        }
    differences = [new.hard - old.hard for old, new in zip(tested.seed.rows, tested.best.rows, strict=True)]
    found["gain"] = {"hard": sum(differences) / len(differences), "p": sign_flip_p(differences, 0)}
    return found


def wilson(hits: int, n: int) -> list[float]:
    """The 95 % interval of a share `hits` of `n` (Wilson 1927)."""
    share, bend = hits / n, Z * Z / n
    middle = (share + bend / 2) / (1 + bend)
    half = Z / (1 + bend) * math.sqrt(share * (1 - share) / n + bend / (4 * n))
    return [max(0.0, middle - half), min(1.0, middle + half)]


def _extension(horizon: int, step: int, steps_per_epoch: int) -> dict[str, Any] | None:
    """What lies beyond the horizon: trained at min_learning_rate, tested again, and no part of the schedule."""
    if step <= horizon:
        return None
    return {"from_step": horizon + 1, "steps": step - horizon, "epochs": (step - horizon) / max(1, steps_per_epoch)}


def write(published: Published, folder: Path, pictures: Mapping[str, bytes]) -> None:
    """Write everything to `folder`, whole or not at all. `pictures`: file name → PNG."""
    with atomic.output_folder(folder) as temp:
        (temp / "best_skill.md").write_text(published.state.best.text, encoding="utf-8")
        (temp / "seed_skill.md").write_text(published.seed_skill, encoding="utf-8")
        atomic.write_json(temp / "history.json", published.history)
        atomic.write_json(temp / "summary.json", published.summary)
        (temp / "skill.diff").write_text(
            diff(published.seed_skill, published.state.best.text, "seed_skill.md", "best_skill.md"), encoding="utf-8"
        )
        _write_edits(temp / "edits", published)
        if published.tested:
            _write_answers(temp / "test.jsonl", published.tested)
        for name, picture in pictures.items():
            (temp / name).write_bytes(picture)


def _write_edits(folder: Path, published: Published) -> None:
    """One JSON file a step with every selected edit and its status, and a diff where the document changed."""
    folder.mkdir()
    before = published.seed_skill
    for row in published.rows[1:]:
        name, record = f"step_{row['record']['step']:04d}", row["record"]
        kept = {"step": record["step"], "action": record["action"], "gate_reason": record["gate_reason"]}
        atomic.write_json(folder / f"{name}.json", kept | {"edits": row["edits"]})
        if row["skill"] != before:
            text = diff(before, row["skill"], f"before {name}", f"after {name}")
            (folder / f"{name}.diff").write_text(text, encoding="utf-8")
        before = row["skill"]


def diff(before: str, after: str, old: str, new: str) -> str:
    """The unified diff of two documents, empty when they are the same."""
    return "".join(difflib.unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), old, new))


def _write_answers(path: Path, tested: Tested) -> None:
    pairs = zip(tested.seed.rows, tested.best.rows, strict=True)
    lines = [json.dumps(_answer(old, new), ensure_ascii=False) for old, new in pairs]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _answer(seed: Row, best: Row) -> dict[str, Any]:
    told = {name: asdict(row) for name, row in (("seed", seed), ("best", best))}
    shared = {"id": seed.id, "question": seed.question, "answers": list(seed.answers)}
    keys = ("said", "hard", "soft", "contains", "fail_reason")
    return shared | {name: {key: row[key] for key in keys} for name, row in told.items()}


def sentence(published: Published, params: SkillParams) -> str:
    """The result on one line."""
    test = published.metrics["test"]
    where = f"step {published.state.step} of {published.metrics['horizon_steps']}"
    if test is None:
        return f"skill: {where}, not tested: {published.summary['ended']}"
    seed, best = test["seed"], test["best"]
    low, high = best["hard_interval"]
    what = params.tasks.package if params.tasks.source == "package" else params.tasks.source
    return (
        f"skill: {what}, {where}: test exact match {seed['hard']:.3f} → {best['hard']:.3f} (95 %: {low:.3f} to "
        f"{high:.3f}), contains {seed['contains']:.3f} → {best['contains']:.3f}, {best['n']} tasks"
    )


def dry(request: Request, folder: Path, findings: Sequence[str]) -> dict[str, Any]:
    """The published dry run (train_size 0): nothing was asked, so nothing is claimed. Returns the metrics."""
    metrics: dict[str, Any] = {
        "dry_run": True,
        "steps": 0,
        "tasks": request.sizes,
    }
    with atomic.output_folder(folder) as temp:
        (temp / "best_skill.md").write_text(request.seed_skill, encoding="utf-8")
        atomic.write_json(temp / "history.json", [])
        atomic.write_json(temp / "summary.json", metrics | {"preflight": list(findings)})
    return metrics
