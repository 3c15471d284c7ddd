"""What one name on the command line stands for: its parameters, its metrics, its curve, its documents, its arena.

    .                  the working tree as it is
    FOLDER             another one: a clone, or a copy below .ratchet/copies
    LOOP/FINGERPRINT   a run directory, as `ratchet runs ls` names it
    COMMIT of a row    an experiment of the session in data/iterate
    REVISION           any commit, tag or branch of git, or experiment of DVC, with the outputs that its dvc.lock names

What a version does not have is left empty and said in `missing`. Refuses to know what it is compared with.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from ratchet.commands import courses, params_of, revisions, runs
from ratchet.commands.project import PIPELINE
from ratchet.core import rundir
from ratchet.core.errors import InputError
from ratchet.core.fingerprint import flatten
from ratchet.loops.research.worktree import GitError, git_bytes
from ratchet.report.series import bpb_interval
from ratchet.settings import settings
from ratchet.tables import results
from ratchet.tables.intervals import PAIR

ARENA = "arena/train.py"
PARAMS = "params.yaml"
DOCUMENTS = "data/evaluate/documents.parquet"
METRICS = tuple(f"metrics/{stage}.json" for stage in ("train", "evaluate", "iterate", "skill", "team"))
ROWS = Path("data/iterate/results.tsv")
BPB = "evaluate.val_bpb"
SHORTEST_COMMIT = 7


@dataclass(frozen=True)
class Version:
    """`params`, `metrics`: dotted names and plain values. `courses`: of each loop that left one, x and y, as
    ratchet.commands.courses names them. `documents`: document, bytes, nats. `intervals`: of a metric whose file has
    none, under the metric's name with PAIR behind it."""

    name: str
    what: str
    params: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    courses: Mapping[str, pd.DataFrame] = field(default_factory=dict[str, pd.DataFrame])
    documents: pd.DataFrame | None = None
    intervals: dict[str, Any] = field(default_factory=dict[str, Any])
    arena: str | None = None
    missing: tuple[str, ...] = ()


def read(name: str, project: Path) -> Version:
    """The version that `name` stands for in `project`. Raises InputError when it stands for nothing."""
    if name == "." or (project / name / PIPELINE).is_file():
        return _tree(project / name, name)
    for reader in (_run, _experiment, _revision):
        if (found := reader(name, project)) is not None:
            return found
    what = f"{name!r} is no run, no experiment of {ROWS} and no revision of git"
    raise InputError("compare", what, "see `ratchet runs ls`, `ratchet results` and `git log`")


def _tree(folder: Path, name: str) -> Version:
    return _of_files(name, "the working tree", lambda path: (folder / path).read_bytes())


def _run(name: str, project: Path) -> Version | None:
    """A run's parameters, arena and ledger. It is named in full or by the start of its fingerprint."""
    there = rundir.list_runs(project / settings().runs)
    if not any(name.rstrip("/") in (f"{run.loop}/{run.fingerprint}", str(run.path), run.loop)
               or run.fingerprint.startswith(name) for run in there):  # fmt: skip
        return None
    run = runs.find_run(name, project / settings().runs)
    identity = rundir.read_identity(run.path)["identity"]
    course = courses.of_run(run.loop, run.path)
    arena = run.path / "arena.py"
    return Version(
        f"{run.loop}/{run.fingerprint}",
        f"run, {run.state}: {run.why}",
        params=flatten(identity.get("params", {}), f"{run.loop}."),
        metrics={"steps": run.steps} | ({} if course.empty else {f"{run.loop}.last": float(course["y"].iloc[-1])}),
        courses={} if course.empty else {run.loop: course},
        arena=arena.read_text(encoding="utf-8") if arena.is_file() else None,
        missing=("a run has no val_bpb: it is judged when its stage has published",),
    )


def _experiment(name: str, project: Path) -> Version | None:
    """A row of the project's own session, by its commit."""
    if len(name) < SHORTEST_COMMIT or not (project / ROWS).is_file():
        return None
    table = results.read(project / ROWS)
    rows = table[table["commit"].str.startswith(name) | table["commit"].map(name.startswith)]
    if rows.empty:
        return None
    row = {key: value for key, value in rows.iloc[0].items() if not (isinstance(value, float) and math.isnan(value))}
    commit = str(row["commit"])
    told = ("status", "description", "reason", "proposer", "isolation", "parent", "arena_sha")
    return Version(
        commit,
        f"experiment, {row['status']}: {row['description']}",
        metrics={str(key): value for key, value in row.items() if key not in ("commit", *told)},
        arena=_shown(project, commit, ARENA),
        missing=("an experiment keeps no documents and no curve outside its session's run directory",),
    )


def _revision(name: str, project: Path) -> Version | None:
    commit = _commit(name, project)
    if not commit:
        return None

    with revisions.opened(project, commit) as revision:

        def content(path: str) -> bytes:
            with revisions.stores_errors():
                return revision.content(path)

        return _of_files(name, f"commit {commit[:10]}", content)


def _commit(name: str, project: Path) -> str:
    """The commit that `name` is for git, or that an experiment of DVC's own of that name is; "" for neither."""
    if commit := revisions.commit_of(project, name):
        return commit
    pattern = f"refs/exps/*/*/{name}"
    return git_bytes(project, "for-each-ref", "--format=%(objectname)", pattern).decode().partition("\n")[0]


def _of_files(name: str, what: str, content: Callable[[str], bytes]) -> Version:
    """A version made of a project's files, of which `content` gives one or raises OSError."""
    missing: list[str] = []

    def found(path: str) -> bytes | None:
        try:
            return content(path)
        except FileNotFoundError:
            missing.append(path)
        except OSError as error:
            missing.append(f"{path} ({error})")
        return None

    params, arena = found(PARAMS), found(ARENA)
    told = {path: found(path) for path in METRICS}
    documents = found(DOCUMENTS)
    judged = None if documents is None else pd.read_parquet(io.BytesIO(documents))
    files = {loop: found(path) for loop, path in courses.FILES.items()}
    drawn = {loop: courses.published(loop, content) for loop, content in files.items() if content}
    return Version(
        name,
        what,
        params=flatten(params_of.of_revision(params.decode(errors="replace"), name)) if params else {},
        metrics={
            key: value
            for path, text in told.items()
            if text is not None
            for key, value in flatten(revisions.json_object(text, f"{path} of {name}"), f"{Path(path).stem}.").items()
        },
        intervals=_interval(judged),
        courses={loop: course for loop, course in drawn.items() if not course.empty},
        documents=judged,
        arena=arena.decode() if arena else None,
        missing=tuple(missing),
    )


def _interval(judged: pd.DataFrame | None) -> dict[str, Any]:
    """The 95 % interval of val_bpb over the documents that were judged, beside the metric's own name."""
    if judged is None:
        return {}
    return {BPB + PAIR: bpb_interval(judged["nats"].to_numpy(float), judged["bytes"].to_numpy(float))}


def _shown(project: Path, commit: str, path: str) -> str | None:
    """The text of a file in a commit; None when the commit, or the file in it, is not there."""
    try:
        return git_bytes(project, "show", f"{commit}:./{path}").decode()
    except GitError:
        return None
