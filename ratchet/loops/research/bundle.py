"""A session's history in one file: a git bundle, and the branch and refs made again from it after a pull or cache hit.

Knows git's bundle format (version 2); refuses to know what a commit is worth.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ratchet.core import atomic
from ratchet.core.errors import InputError
from ratchet.loops.research.worktree import GitError, Repository, git_bytes

PACKING = ("--revs", "--stdout", "-q", "--no-reuse-delta", "--no-reuse-object", "--window=0")
"""A pack made afresh: nothing is taken over from the repository's own packs, so `git gc` changes no byte of it."""

AGAIN = "restore it: `dvc checkout` or `dvc pull`"
FIRST_LINE = b"# v2 git bundle\n"


def write(repository: Repository, path: Path, base: str, refs: Mapping[str, str]) -> None:
    """Write `refs` and all commits after `base` to `path`. The bytes depend on them and on git's version alone."""
    asked = "".join(f"{commit}\n" for _, commit in sorted(refs.items())) + f"^{base}\n"
    lines = [f"-{base}\n", *(f"{commit} {name}\n" for name, commit in sorted(refs.items())), "\n"]
    pack = git_bytes(repository.project, "pack-objects", *PACKING, data=asked.encode())
    atomic.write_bytes(path, FIRST_LINE + "".join(lines).encode() + pack)


def read(repository: Repository, path: Path) -> dict[str, str]:
    """Bring the commits of the bundle `path` into the repository; its refs, by name. Raises InputError."""
    try:
        with path.open("rb") as file:
            first, second = file.readline(), file.readline()
        if first != FIRST_LINE or not second.startswith(b"-"):
            raise InputError(path, "is no bundle of a session", AGAIN)
        base = second[1:].split()[0].decode()
        if not repository.has([base]):
            do = "fetch the branch that the session started from"
            raise InputError(path, f"builds on commit {base}, which is not in this repository", do)
        told = git_bytes(repository.project, "bundle", "unbundle", str(path.resolve())).decode()
    except (FileNotFoundError, GitError) as error:
        raise InputError(path, f"cannot be read: {error}", AGAIN) from None
    return {name: commit for commit, name in (line.split(" ") for line in told.splitlines())}


def restore(project: Path, path: Path) -> dict[str, str]:
    """Make the branch and refs of the bundle `path` in the repository of `project`; returns them. Raises InputError.

    A session that goes on has its branch ahead of an older bundle: a branch that holds the bundle's commit stays.
    """
    repository = Repository.of(project)
    refs = read(repository, path)
    for name, commit in refs.items():
        there = repository.refs(name).get(name)
        if there is None or not _holds(repository, there, commit):
            repository.git("update-ref", name, commit)
    return refs


def _holds(repository: Repository, there: str, commit: str) -> bool:
    try:
        git_bytes(repository.project, "merge-base", "--is-ancestor", commit, there)
    except GitError:
        return False
    return True
