"""What a session leaves to read: the folder data/iterate and metrics/iterate.json.

    results.tsv session.bundle session.json     the rows; the history; which commit is which
    train.py learned.md                         the best arena; what was learned
    calls.jsonl                                 what a model was asked and answered, if one was: enough for a replay
    patches/                                    the kept commits as a series for `git am`; discarded/ has the others
    experiments/<n>/                            train.py, run.log, metrics.json, history.tsv, documents.parquet

Refuses to know how any of it was decided.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ratchet.core import atomic
from ratchet.core.gate import Rule
from ratchet.llm.recorded import Mode, Recorded
from ratchet.loops.research import bundle, report_text
from ratchet.loops.research.compare import Gain
from ratchet.loops.research.executor import Result
from ratchet.loops.research.proposers.llm import RECORD
from ratchet.loops.research.records import Status, Trial
from ratchet.loops.research.state import Entry, State
from ratchet.loops.research.worktree import Branch
from ratchet.sandbox.job import Isolation
from ratchet.tables import results

TAKEN = {"run.log": "run.log", "trained/history.tsv": "history.tsv"}
CALLS = f"proposals/storage/{RECORD}"
SLUG_LETTERS = 50


@dataclasses.dataclass(frozen=True)
class TestLook:
    """What the test split said, once: baseline and best, and the paired gain between them."""

    baseline: Result
    best: Result
    gain: Gain
    documents: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Session:
    """A session at its end. `arena`: the file's path in the project; `work`: the folder of its experiments;
    `table`: the name of the judge's table in an experiment's folder."""

    state: State
    entries: Sequence[Entry]
    branch: Branch
    arena: str
    work: Path
    table: str
    proposer: str
    ended: str
    rule: Rule
    test: TestLook | None


def publish(session: Session, folder: Path, metrics_file: Path) -> dict[str, Any]:
    """Write `folder` whole and then `metrics_file`; returns the metrics."""
    told = metrics(session)
    with atomic.output_folder(folder) as temp:
        results.write(temp / "results.tsv", [dataclasses.asdict(entry.trial) for entry in session.entries])
        repository = session.branch.repository
        best = repository.source(session.state.best.commit, session.arena)
        (temp / "train.py").write_bytes(best.encode())
        bundle.write(repository, temp / "session.bundle", session.state.base, refs_of(session))
        atomic.write_json(temp / "session.json", described(session))
        (temp / "learned.md").write_text(
            report_text.learned([entry.trial for entry in session.entries], told), encoding="utf-8"
        )
        if (session.work.parent / CALLS).is_file():
            Recorded(session.work.parent / CALLS, mode=Mode.REPLAY).publish(temp / "calls.jsonl")
        (temp / "patches").mkdir()
        (temp / "experiments").mkdir()
        for entry in session.entries:
            _patch(session, entry, temp / "patches")
            _experiment(session, entry, temp / "experiments" / str(entry.number))
    atomic.write_json(metrics_file, told)
    return told


def metrics(session: Session) -> dict[str, Any]:
    """metrics/iterate.json: nothing in it depends on time."""
    state, trials = session.state, [entry.trial for entry in session.entries]
    statuses = [trial.status for trial in trials[1:]]
    told: dict[str, Any] = {
        "tag": session.branch.tag,
        "experiments": len(statuses),
        "kept": statuses.count(Status.KEEP),
        "discarded": statuses.count(Status.DISCARD),
        "crashed": statuses.count(Status.CRASH),
        "progress": sum(entry.progress for entry in session.entries[1:]),
        "base_commit": state.baseline.commit,
        "best_commit": state.best.commit,
        "baseline_val_bpb": state.baseline.score,
        "val_bpb": state.best.score,
        "gain": state.baseline.score - state.best.score,
        "noise": {"sd": state.sd, "seeds": len(state.scores), "threshold": session.rule.threshold},
        "isolation": _weakest(trials),
        "proposer": session.proposer,
        "ended": session.ended,
    }
    if session.test:
        look, gain = session.test, session.test.gain
        told["test"] = {
            "baseline_bpb": look.baseline.val_bpb,
            "bpb": look.best.val_bpb,
            "gain": gain.gain,
            "lower": gain.low,
            "upper": gain.high,
            "documents": look.documents,
        }
    return told


def _weakest(trials: Sequence[Trial]) -> Isolation:
    """What may be said of a session whose experiments ran here and there."""
    return "container" if all(trial.isolation == "container" for trial in trials) else "weak"


def refs_of(session: Session) -> dict[str, str]:
    """The session's branch and its refs, as they are in the repository."""
    refs = {f"refs/heads/{session.branch.name}": session.state.best.commit}
    lost = [entry for entry in session.entries if entry.commit and entry.trial.status is not Status.KEEP]
    return refs | {f"refs/ratchet/{session.branch.tag}/{entry.number}": entry.commit for entry in lost}


def described(session: Session) -> dict[str, Any]:
    """session.json: what a replay and `ratchet promote` need beside the table."""
    return {
        "tag": session.branch.tag,
        "base": session.state.base,
        "head": session.state.best.commit,
        "arena": session.arena,
        "scores": list(session.state.scores),
        "commits": {str(entry.number): entry.commit for entry in session.entries},
    }


def _patch(session: Session, entry: Entry, folder: Path) -> None:
    """The experiment as a patch with its message; none for the baseline and where there was no proposal."""
    if not entry.number or not entry.commit:
        return
    slug = re.sub(r"[^a-z0-9]+", "-", entry.trial.description.lower()).strip("-")[:SLUG_LETTERS].strip("-")
    place = folder if entry.trial.status is Status.KEEP else folder / "discarded"
    place.mkdir(exist_ok=True)
    options = ("-1", "--stdout", "--no-signature", "--no-stat", "--full-index", "--no-ext-diff", "--no-color")
    text = session.branch.repository.git("format-patch", *options, entry.commit)
    (place / f"{entry.number:04d}-{slug or 'change'}.patch").write_bytes(text.encode("utf-8", "surrogateescape"))


def _experiment(session: Session, entry: Entry, folder: Path) -> None:
    """What one experiment printed and measured."""
    folder.mkdir()
    if entry.commit:
        source = session.branch.repository.source(entry.commit, session.arena)
        (folder / "train.py").write_bytes(source.encode())
    trial = entry.trial
    told = {
        name: getattr(trial, name)
        for name in ("status", "val_bpb", "delta", "noise", "steps", "tokens", "params_m", "seed", "reason")
    }
    atomic.write_json(folder / "metrics.json", told)
    work = session.work / entry.key if entry.key else None
    if work is None or not work.is_dir():
        return
    for name, target in (TAKEN | {session.table: "documents.parquet"}).items():
        if (work / name).is_file():
            shutil.copyfile(work / name, folder / target)
