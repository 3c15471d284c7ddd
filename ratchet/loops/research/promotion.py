"""Bring a session's best arena into the user's checkout, as one commit of one file with its evidence in the message.

The only place where Ratchet writes into a checkout's history, and only on the user's command. Refuses to touch any
other file, what else is staged, and an arena with changes that no commit holds.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ratchet.core import atomic
from ratchet.core.errors import InfrastructureError, InputError
from ratchet.loops.research import bundle
from ratchet.loops.research.worktree import GitError, Repository, git_bytes
from ratchet.tables import metrics, results

FOLDER, METRICS = Path("data/iterate"), Path("metrics/iterate.json")
KEPT_LINES = 40


@dataclass(frozen=True)
class Finished:
    """A session that has published. `told`: session.json; `metrics`: metrics/iterate.json; `rows`: results.tsv."""

    folder: Path
    told: Mapping[str, Any]
    metrics: Mapping[str, Any]
    rows: pd.DataFrame


@dataclass(frozen=True)
class Promoted:
    """What was done. `commit` None: the checkout had the best arena already. `merged`: into a changed arena."""

    commit: str | None
    arena: str
    message: str
    merged: bool = False


def find(places: list[Path], tag: str | None) -> Finished:
    """The finished session `tag` in one of `places` (the project and its copies); without a tag the first's.

    Raises InputError naming the sessions there are.
    """
    found: list[str] = []
    for place in places:
        try:
            told = json.loads((place / FOLDER / "session.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if tag in (None, told["tag"], f"ratchet/{told['tag']}"):
            session = metrics.read(place / METRICS)
            return Finished(place / FOLDER, told, session, results.read(place / FOLDER / "results.tsv"))
        found.append(told["tag"])
    there = f"finished here: {', '.join(found)}" if found else "none has finished here"
    raise InputError("promote", f"no finished session {tag or ''}".rstrip() + f"; {there}", "see `ratchet status`")


def promote(project: Path, session: Finished, *, force: bool) -> Promoted:
    """Commit the session's best arena on top of the checkout's HEAD.

    An arena that has changed since the session began is merged three-way. Raises InputError when the session has no
    progress (unless `force`), when the arena has uncommitted changes, and when the merge has conflicts.
    """
    repository, arena = Repository.of(project), session.told["arena"]
    if not session.metrics["progress"] and not force:
        what = f"session {session.told['tag']} has no progress: {session.metrics['kept']} kept, none of them better"
        raise InputError("promote", what, "add `--force` to bring what it has all the same")
    _refuse_uncommitted(repository, arena)
    _restore(project, repository, session)
    base, best = session.told["base"], session.told["head"]
    theirs = repository.source(best, arena)
    ours = repository.source(repository.head(), arena)
    if ours == theirs:
        return Promoted(None, arena, "")
    origin = repository.source(base, arena)
    merged = ours != origin
    text = _merged(ours, origin, theirs, arena, session) if merged else theirs
    if text == ours:
        return Promoted(None, arena, "")
    message = evidence(session, merged=merged)
    return Promoted(_commit(repository, project / arena, arena, text, message), arena, message, merged)


def evidence(session: Finished, *, merged: bool) -> str:
    """The message of the commit."""
    told, noise = session.metrics, session.metrics["noise"]
    parts = [
        f"Promote ratchet/{told['tag']}: val_bpb {told['baseline_val_bpb']:.4f} -> {told['val_bpb']:.4f}",
        f"{told['experiments']} experiments by {told['proposer']}: {told['kept']} kept, {told['discarded']} discarded, "
        f"{told['crashed']} crashed.\n"
        f"Validation: gain {told['gain']:.6f}; a gain counted above {noise['threshold']:.6f} "
        f"(sd {noise['sd']:.6f} over {noise['seeds']} seeds).\n"
        f"{_test(told)}\nIsolation: {told['isolation']}.",
        "Kept:\n" + "\n".join(_kept(session.rows)),
    ]
    if merged:
        parts.append("Merged into an arena that had changed since: the figures are of the session's own, not of this.")
    parts.append(
        f"Ratchet-Session: {told['tag']}\nRatchet-Best: {told['best_commit']}\nRatchet-Base: {session.told['base']}"
    )
    return "\n\n".join(parts) + "\n"


def _test(told: Mapping[str, Any]) -> str:
    test = told.get("test")
    if test is None:
        return "Test split: not looked at, nothing was kept."
    holds = "carries over" if metrics.carries_over(told) else "DOES NOT carry over"
    interval = f"95 % {test['lower']:.6f} to {test['upper']:.6f}, {test['documents']} documents"
    return f"Test split: gain {test['gain']:.6f} ({interval}): it {holds}."


def _kept(rows: pd.DataFrame) -> list[str]:
    lines = [
        f"  {row['commit']} {row['delta']:+.6f} {results.one_line(str(row['description']))}"
        for row in rows.to_dict("records")[1:]
        if row["status"] == "keep"
    ]
    more = [f"  and {len(lines) - KEPT_LINES} more"] if len(lines) > KEPT_LINES else []
    return lines[:KEPT_LINES] + more or ["  nothing"]


def _refuse_uncommitted(repository: Repository, arena: str) -> None:
    path = f":(top,literal){repository.prefix}{arena}"
    if repository.git("status", "--porcelain", "--untracked-files=all", "--", path).strip():
        raise InputError(arena, "has changes that no commit holds", "commit them, or put them away: `git stash`")


def _restore(project: Path, repository: Repository, session: Finished) -> None:
    """Make sure that the session's commits are here: out of its bundle when they are not. Raises InputError."""
    if not repository.has([session.told["base"], session.told["head"]]):
        bundle.restore(project, session.folder / "session.bundle")


def _merged(ours: str, origin: str, theirs: str, arena: str, session: Finished) -> str:
    """`ours` with what the session changed. Raises InputError when both changed the same lines."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("ours", "origin", "theirs")]
        for path, text in zip(paths, (ours, origin, theirs), strict=True):
            path.write_bytes(text.encode())
        try:
            return git_bytes(Path(folder), "merge-file", "-p", "-q", *map(str, paths)).decode()
        except GitError:
            what = f"has changed since session {session.told['tag']} began, in lines that the session changed too"
            do = f"apply {session.folder}/patches by hand, or take {session.folder}/train.py whole"
            raise InputError(arena, what, do) from None


def _commit(repository: Repository, path: Path, arena: str, text: str, message: str) -> str:
    """Write `text` and commit that path alone; what else is staged stays staged. On an error the file is as before."""
    before = path.read_bytes()
    mode = path.stat().st_mode
    atomic.write_bytes(path, text.encode())
    path.chmod(mode)
    try:
        pathspec = f":(top,literal){repository.prefix}{arena}"
        repository.git("commit", "-q", "--only", "-F", "-", "--", pathspec, data=message.encode())
    except InfrastructureError:
        atomic.write_bytes(path, before)
        path.chmod(mode)
        raise
    return repository.head()
