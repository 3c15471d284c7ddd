"""How each loop went, as one curve a loop, from what a stage published or from a run that still goes on.

Knows which file of a loop holds its course; refuses to know what is done with it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from ratchet.core.ledger import Ledger
from ratchet.loops.research.state import entries
from ratchet.loops.team.state import UPDATES_FILE


class Kind(NamedTuple):
    """What a loop's curve is called, and what its axes are."""

    title: str
    x: str
    y: str
    stairs: bool = False
    """A value holds until the next one."""


KINDS = {
    "train": Kind("Training loss", "optimizer step", "nats per token"),
    "iterate": Kind("Best of the session", "experiment", "validation bits per byte, lower is better", stairs=True),
    "skill": Kind("Best document", "training step", "the gate's metric on validation", stairs=True),
    "team": Kind("Team reward", "env step", "mean reward of the joint actions"),
}
FILES = {
    "train": "data/train/history.tsv",
    "iterate": "data/iterate/results.tsv",
    "skill": "data/skill/history.json",
    "team": "data/team/history.json",
}


def published(loop: str, content: bytes) -> pd.DataFrame:
    """The course in the content of `FILES[loop]`; float columns x and y."""
    if loop == "train":
        return _course(pd.read_csv(io.BytesIO(content), sep="\t")[["step", "loss"]].itertuples(index=False))
    if loop == "iterate":
        rows = pd.read_csv(io.BytesIO(content), sep="\t", dtype={"commit": str})
        return _running_best(zip(rows["status"], rows["val_bpb"], strict=True))
    return _course(_TOLD[loop](row) for row in json.loads(content))


def of_run(loop: str, run: Path) -> pd.DataFrame:
    """The course in the records of a run directory; empty for a loop without one."""
    rows = Ledger(run / "ledger.jsonl").rows()
    if loop == "train":
        return _course((row["step"], row["loss"]) for entry in rows for row in entry.get("rows", []))
    if loop == "iterate":
        trials = [entry.trial for entry in entries(rows)]
        return _running_best((str(trial.status), trial.val_bpb) for trial in trials)
    if loop == "skill":
        return _course(_TOLD[loop](row["record"]) for row in rows if row.get("record", {}).get("step"))
    if loop == "team":
        return _course(_TOLD[loop](row) for row in Ledger(run / UPDATES_FILE).rows())
    return _course(())


_TOLD: dict[str, Callable[[Mapping[str, Any]], tuple[float, float]]] = {
    "skill": lambda row: (row["step"], row["best_score"]),
    "team": lambda row: (row["env_step"], row["reward_mean"]),
}


def _running_best(rows: Iterable[tuple[str, float | None]]) -> pd.DataFrame:
    """The score of the version that each experiment was compared with, or that it became."""
    best: float | None = None
    told: list[tuple[float, float]] = []
    for number, (status, score) in enumerate(rows):
        best = score if status == "keep" else best
        if best is not None:
            told.append((number, best))
    return _course(told)


def _course(points: Iterable[tuple[float, float]]) -> pd.DataFrame:
    return pd.DataFrame(list(points), columns=["x", "y"]).astype(float)
