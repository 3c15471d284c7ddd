"""history.json of the skill loop: one record a training step, under the published field names, skipped steps too.

Knows the fields; refuses to know how a step was made.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
from pandera.pandas import DataFrameSchema

from ratchet.core.errors import InputError
from ratchet.core.fingerprint import flatten
from ratchet.settings import settings
from ratchet.tables.conform import conform, record_numbers, row_numbers
from ratchet.tables.history import newest_log
from ratchet.tables.records import read as read_object
from ratchet.tables.records import read_rows
from ratchet.tables.rules import count, flag, number, text

ACTIONS = ("accept_new_best", "accept", "reject", "force_accept", "skip_no_patches")
ROLES = {"analyst": "the optimizer", "rollout": "the agent, evaluations included"}

SCHEMA = DataFrameSchema(
    {
        "step": count("training step, counted from 1", low=1, order="rising"),
        "epoch": count("pass over the training tasks, from 1", low=1, order="never falling"),
        "step_in_epoch": count("place in the epoch, from 1", low=1),
        **{
            f"timing.{name}_s": number(f"seconds of {name}", low=0)
            for name in ("rollout", "reflect", "aggregate", "select", "update", "evaluate")
        },
        **{
            f"tokens.{role}.{name}": count(f"{name} of {who}")
            for role, who in ROLES.items()
            for name in ("calls", "prompt_tokens", "completion_tokens")
        },
        "rollout_hard": number("share of training tasks answered exactly", low=0, high=1),
        "rollout_soft": number("mean F1 of their answers", low=0, high=1),
        "rollout_n": count("training tasks of the step", low=1),
        "n_patches": count("patches that hold an edit"),
        "n_failure_patches": count("of them learnt from failures"),
        "n_success_patches": count("of them learnt from successes"),
        "n_edits_merged": count("edits after merging"),
        "n_edits_ranked": count("edits selected"),
        "edit_budget": count("edits the step might make: the learning rate", low=1),
        "lr_control_mode": text("how the budget is set"),
        "candidate_hash": text("sha256 of the candidate, 16 digits"),
        "candidate_skill_len": count("characters of the candidate"),
        **{
            f"edit_apply_summary.{name}": count(what)
            for name, what in (
                ("total", "edits selected"),
                ("applied", "of them applied"),
                ("skipped", "of them without a match, protected, or changing nothing"),
                ("errors", "of them incomplete"),
            )
        },
        "selection_hard": number("share of validation tasks the candidate answers exactly", low=0, high=1),
        "selection_soft": number("mean F1 of its answers", low=0, high=1),
        "gate_metric": text("what the gate looks at", choices=("hard", "soft", "mixed")),
        "candidate_gate_score": number("mean of that metric", low=0, high=1),
        "action": text("what the step came to", choices=ACTIONS),
        "current_score": number("gate metric of the document after the step", low=0, high=1),
        "best_score": number("gate metric of the best document so far", low=0, high=1, order="never falling"),
        "best_step": count("step it comes from; 0 = the seed document"),
        "current_origin": text("where the present document comes from"),
        "best_origin": text("where the best one comes from"),
        "skill_len": count("characters of the present document"),
        "wall_time_s": number("seconds of the step", low=0),
        "gate_p": number("chance of such a gain when nothing changed", low=0, high=1, required=False),
        "extension": flag("whether the step lies beyond the horizon", required=False),
        "cumulative.prompt_tokens": number("prompt tokens up to here, earlier processes too", low=0, required=False),
        "cumulative.completion_tokens": number("reply tokens up to here", low=0, required=False),
        "cumulative.cost": number("money up to here", low=0, required=False, order="never falling"),
    },
    name="data/skill/history.json",
    description="One record per training step of the skill loop; `support_counts` is a list beside these.",
)

SUMMARY = DataFrameSchema(
    {
        "ended": text("why training ended"),
        "baseline.gate_score": number("gate metric of the seed document on the validation tasks", low=0, high=1),
        "cost": number("money that agent and optimizer took", low=0),
        "seconds": number("seconds of all steps", low=0),
    },
    name="skill/summary.json",
    description="One object beside metrics/skill.json, with what differs between reruns; `alerts` are findings.",
)

EDITS = DataFrameSchema(
    {
        "step": count("training step that proposed it", low=1, order="never falling"),
        "action": text("what the step came to", choices=ACTIONS),
        "op": text("what it does", choices=("append", "insert_after", "replace", "delete")),
        "status": text(
            "what became of it",
            choices=("applied", "no_match", "protected", "no_change", "invalid", "rewritten"),
        ),
        "support": count("patches that proposed it"),
        "content": text("text that it puts in", nullable=True),
        "target": text("text that it looks for", nullable=True),
        "reason": text("why it was proposed", nullable=True),
    },
    name="skill/edits",
    description="One row per selected edit, from the files step_NNNN.json in data/skill/edits.",
)

DO = "run `dvc repro --force skill` to write it anew"


def read(path: Path, *, runs: Path | None = None) -> pd.DataFrame:
    """The history in `path` as a table with dotted columns.

    Raises InputError naming the run's log when it is missing, torn or empty, TableError when a record is unfit.
    """
    log = newest_log(runs or settings().runs, "skill")
    return check(read_rows(path, do=DO, log=log), path, log=log)


def check(records: list[dict[str, Any]], where: Path | str, *, log: str = DO) -> pd.DataFrame:
    """`records` as a table. Raises InputError for none, TableError naming record, field, value and rule."""
    if not records:
        raise InputError(where, "holds no step: the run died before its first one", log)
    frame = pd.DataFrame([flatten(record) for record in records], dtype=object)
    return conform(frame, SCHEMA, where, rows=record_numbers, do=DO, noun="key")


def read_summary(path: Path) -> dict[str, Any]:
    """summary.json of a training that took a step, checked. Raises InputError or TableError."""
    return read_object(path, SUMMARY, do=DO)


def read_edits(folder: Path) -> pd.DataFrame:
    """Every selected edit in `folder`, step by step. Raises InputError naming the file, or TableError."""
    rows: list[dict[str, Any]] = []
    for path in sorted(folder.glob("step_*.json")):
        try:
            told: Any = json.loads(path.read_text(encoding="utf-8"))
            common = {"step": told["step"], "action": told["action"]}
            rows += [{**edit, **common} for edit in told["edits"]]
        except (ValueError, TypeError, KeyError):
            raise InputError(path, "is no step's edits (it may be cut off)", DO) from None
    frame = pd.DataFrame(rows, columns=list(EDITS.columns), dtype=object).replace({"": None})
    return conform(frame, EDITS, folder, rows=row_numbers, do=DO)
