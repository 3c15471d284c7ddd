"""What a scheduled run does with git: look at the tree, fast-forward it, keep results on a branch beside it.

The checkout, its index and its branch are touched by the fast-forward alone. Refuses to know what ran.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from ratchet.core.errors import InfrastructureError, InputError
from ratchet.loops.research.worktree import Repository
from ratchet.settings import child_environment

UNDER = "ratchet/"
KEPT = ("dvc.lock", "params.yaml", "metrics")
"""What git keeps of a result, beside the table of a session."""
TABLES = {"data/iterate/results.tsv": "metrics/results.tsv"}
"""Tables that only DVC keeps, and where the branch has them."""
SUBJECT = "Results of "
"""How the branch's commits begin: what counts how many results it holds."""


def refuse_dirty(project: Path) -> None:
    """Raise InputError when code or params have changes that no commit holds; results do not count."""
    told = Repository.of(project).git("status", "--porcelain", "--", ".", ":!dvc.lock", ":!metrics")
    if told:
        first = told.splitlines()[0].strip()
        more = len(told.splitlines()) - 1
        what = f"has uncommitted changes: {first}{f' and {more} more' if more else ''}"
        raise InputError(project, what, "commit them, or set dirty to mark")


def fast_forward(project: Path) -> str:
    """`git pull --ff-only`; says where that led. Raises InfrastructureError with git's last line."""
    command = ["git", "pull", "--ff-only", "--quiet"]
    ran = subprocess.run(command, cwd=project, env=child_environment(GIT_TERMINAL_PROMPT="0"), capture_output=True,
                         text=True, check=False)  # fmt: skip
    if ran.returncode:
        last = (ran.stderr.strip() or "it said nothing").splitlines()[-1]
        raise InfrastructureError("git pull", last, "mend the branch's upstream, or set update to false")
    return f"code: {Repository.of(project).head()}"


def check_branch(project: Path, branch: str) -> int:
    """How many results `branch` holds; 0 when it is not there yet.

    Raises InputError when it is not below ratchet/ or is checked out somewhere.
    """
    repository = Repository.of(project)
    if not branch.startswith(UNDER) or branch == UNDER:
        raise InputError("branch", f"{branch!r} is not below {UNDER}", f"name it {UNDER}nightly, say")
    name = f"refs/heads/{branch}"
    if f"branch {name}" in repository.git("worktree", "list", "--porcelain").splitlines():
        raise InputError("branch", f"{branch!r} is checked out", "name another one, or leave that checkout")
    if name not in repository.refs(name):
        return 0
    return int(repository.git("rev-list", "--count", f"--grep=^{SUBJECT}", name))


def commit_results(project: Path, made_in: Path, branch: str) -> str:
    """Commit what `made_in` (a copy below `project`, or it itself) has of `KEPT` and `TABLES` to `branch`, on top of
    what it holds or else of HEAD, also when nothing is new; says which commit that is. Raises as `check_branch`.
    """
    check_branch(project, branch)
    repository, name = Repository.of(project), f"refs/heads/{branch}"
    there = repository.refs(name).get(name, "")
    message = f"{SUBJECT}{repository.head()[:10]}\n"
    commit = repository.commit_files(there or repository.head(), _results(project / made_in), message)
    repository.git("update-ref", name, commit, there)
    return f"{branch}: {commit[:10]}"


def _results(folder: Path) -> dict[str, bytes]:
    """Where the branch has each of the results in `folder`, and its content."""
    kept = [file for path in KEPT for file in _files(folder / path)]
    found = {file.relative_to(folder).as_posix(): file.read_bytes() for file in kept}
    return found | {to: (folder / path).read_bytes() for path, to in TABLES.items() if (folder / path).is_file()}


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.is_file())
    return [path] if path.is_file() else []
