"""Everything the plots and the page tell, read once, checked, and checked against each other.

Knows which tables belong to one result; refuses to know how any of it is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ratchet.core.errors import InputError
from ratchet.data.documents import read_documents
from ratchet.report import lineage, series, session, skill, team
from ratchet.report.session import SessionFacts
from ratchet.report.skill import SkillFacts
from ratchet.report.team import TeamFacts
from ratchet.tables import documents, history, metrics, provenance, timing

AGREEMENT = 1e-6
"""How far, in bits per byte, the documents' sum may lie from the metric: the judge sums in float64."""

BEGINNING = 110
"""Characters of a document that are shown."""


@dataclass(frozen=True)
class Facts:
    """One result. `documents` carries one more column than its file: `beginning`, the first words of each."""

    history: pd.DataFrame
    steps: pd.DataFrame
    timing: Mapping[str, Any]
    judging: Mapping[str, Any]
    documents: pd.DataFrame
    metrics: Mapping[str, Mapping[str, Any]]
    """Stage → what metrics/<stage>.json holds."""
    provenance: Mapping[str, Mapping[str, Any]]
    """Stage → its provenance.json."""
    lineage: list[lineage.Node]
    session: SessionFacts
    skill: SkillFacts
    team: TeamFacts

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of val_bpb over documents."""
        return self._interval(self.documents["nats"])

    @property
    def gain_interval(self) -> tuple[float, float]:
        """95 % interval of the gain over the n-gram model, both paired document by document."""
        return self._interval(self.documents["ngram_nats"] - self.documents["nats"])

    def _interval(self, nats: pd.Series) -> tuple[float, float]:
        return series.bpb_interval(nats.to_numpy(np.float64), self.documents["bytes"].to_numpy(np.float64))


def read(
    *,
    history_file: Path,
    timing_folder: Path,
    documents_file: Path,
    judging_file: Path,
    texts_folder: Path,
    metrics_files: Mapping[str, Path],
    provenance_files: Mapping[str, Path],
    session_folder: Path,
    skill_folder: Path,
    team_folder: Path,
    team_timing_file: Path,
    root: Path,
) -> Facts:
    """The facts of one result. Raises InputError for a file that is missing, empty, garbled, or of another result."""
    told = {stage: metrics.read(path) for stage, path in metrics_files.items()}
    facts = Facts(
        history=history.read(history_file),
        steps=timing.read_steps(timing_folder / "steps.tsv"),
        timing=timing.read_summary(timing_folder / "summary.json"),
        judging=timing.read_judging(judging_file),
        documents=_described(documents.read(documents_file), documents_file, texts_folder),
        metrics=told,
        provenance={stage: provenance.read(path) for stage, path in provenance_files.items()},
        lineage=lineage.read(root, writing="plot"),
        session=session.read(session_folder, told["iterate"]),
        skill=skill.read(skill_folder, told["skill"]),
        team=team.read(team_folder, team_timing_file, told["team"]),
    )
    _agree(facts, history_file, timing_folder, documents_file)
    return facts


def _described(table: pd.DataFrame, path: Path, texts_folder: Path) -> pd.DataFrame:
    """`table` with how each document begins."""
    beginnings = [_beginning(text) for text in read_documents(texts_folder)]
    last = int(table["document"].iloc[-1])
    if last >= len(beginnings):
        what = f"names document {last}, {texts_folder} holds {len(beginnings)} (the first is 0)"
        raise InputError(path, what, documents.REMEDY)
    return table.assign(beginning=[beginnings[number] for number in table["document"]])


def _beginning(text: str) -> str:
    """The first words of `text` on one line."""
    line = " ".join(text[: 2 * BEGINNING].split())
    return line if len(line) <= BEGINNING else line[: BEGINNING - 1].rstrip() + "…"


def _agree(facts: Facts, history_file: Path, timing_folder: Path, documents_file: Path) -> None:
    """Raise InputError when the files are not of one result: then a picture would mix two runs."""
    trained, last = facts.metrics["train"]["steps"], int(facts.history["step"].iloc[-1])
    if trained != last:
        raise InputError(history_file, f"ends at step {last}, metrics/train.json says {trained} steps", history.REMEDY)
    timed = int(facts.steps["step"].iloc[-1])
    if timed != last:
        raise InputError(timing_folder / "steps.tsv", f"ends at step {timed}, the history at {last}", history.REMEDY)
    for column, key in (("nats", "val_bpb"), ("ngram_nats", "ngram_bpb")):
        table, said = facts.documents, facts.metrics["evaluate"][key]
        summed = float(table[column].sum() / math.log(2) / table["bytes"].sum())
        if not np.isclose(summed, said, rtol=0, atol=AGREEMENT):
            what = f"its {column} sum to {summed:.6f} bits per byte, metrics/evaluate.json says {key} {said:.6f}"
            raise InputError(documents_file, what, documents.REMEDY)
