"""The git side of a session: candidates as commits, a branch and refs of its own, a worktree of its own.

Commits are made by plumbing with an index file of their own, so the user's checkout, index and uncommitted work are
never touched. Identity and date are fixed: the same history from the same base has the same hashes. Refuses to know
why a commit is kept.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ratchet.core.errors import InfrastructureError, InputError
from ratchet.settings import child_environment

WHO = {"NAME": "Ratchet", "EMAIL": "ratchet@localhost"}
CONFIG = {
    "core.autocrlf": "false", "core.eol": "lf", "core.hooksPath": "/dev/null", "core.quotePath": "false",
    "commit.gpgSign": "false", "i18n.commitEncoding": "utf-8", "core.fsmonitor": "false", "gc.auto": "0",
    "pack.threads": "1", "pack.window": "0", "pack.compression": "6", "core.compression": "6",
}  # fmt: skip
"""What a user's configuration may not change of our commits and packs; no hook of theirs runs."""

STATUS_FIELDS = {"1": 8, "2": 9, "u": 10}
"""Blanks before the path in a line of `git status --porcelain=v2`; 1 for untracked and ignored files."""


@dataclass(frozen=True)
class Repository:
    """The git repository that holds `project`. `prefix`: the project's folder in it, "" or `a/b/`."""

    project: Path
    prefix: str

    @classmethod
    def of(cls, project: Path) -> Repository:
        """The repository of `project`. Raises InputError when there is none."""
        try:
            prefix = _git(project, "rev-parse", "--show-prefix")
        except GitError as error:
            raise InputError(project, f"is in no git repository ({error})", "type `git init` and commit") from None
        return cls(project.resolve(), prefix.strip("\n"))

    def git(self, *arguments: str, data: bytes | None = None, more: Mapping[str, str] | None = None) -> str:
        """The output of a git command here. Raises InfrastructureError with git's last line."""
        try:
            return _git(self.project, *arguments, data=data, more=more)
        except GitError as error:
            raise InfrastructureError(f"git {arguments[0]}", str(error), "mend the repository and run again") from None

    def head(self) -> str:
        """The commit that the user's checkout stands at, also when detached. Raises InputError when there is none."""
        try:
            return _git(self.project, "rev-parse", "--verify", "-q", "HEAD^{commit}").strip()
        except GitError:
            what, do = "the repository has no commit to start from", "commit once: git add -A && git commit"
            raise InputError(self.project, what, do) from None

    def has(self, commits: list[str]) -> bool:
        """Whether every one of `commits` is there."""
        asked = "".join(f"{commit}^{{commit}}\n" for commit in commits)
        told = self.git("cat-file", "--batch-check", data=asked.encode())
        return not any(line.endswith(" missing") for line in told.splitlines())

    def commit(self, parent: str, path: str, source: str, message: str) -> str:
        """The commit that makes `path` (relative to the project) `source` on top of `parent`; its full hash.

        Its date is the parent's + 1 s. Made again it is the same commit.
        """
        date = f"@{int(self.git('show', '-s', '--format=%ct', parent)) + 1} +0000"
        return self.commit_files(parent, {path: source.encode()}, message, date)

    def commit_files(self, parent: str, files: Mapping[str, bytes], message: str, date: str | None = None) -> str:
        """The commit on top of `parent` that has `files` (path relative to the project → content) laid over its tree.

        `date`: as git reads one; None: now.
        """
        with tempfile.TemporaryDirectory() as folder:
            index = {"GIT_INDEX_FILE": f"{folder}/index"}
            self.git("read-tree", f"{parent}^{{tree}}", more=index)
            for path, content in files.items():
                blob = self.git("hash-object", "-w", "--stdin", data=content).strip()
                entry = f"100644 {blob}\t{self.prefix}{path}\0"
                self.git("update-index", "-z", "--add", "--index-info", data=entry.encode(), more=index)
            tree = self.git("write-tree", more=index).strip()
        who = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in WHO.items()}
        dates = {} if date is None else {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
        return self.git("commit-tree", tree, "-p", parent, "-F", "-", data=message.encode(), more=who | dates).strip()

    def source(self, commit: str, path: str) -> str:
        """The text of `path` in `commit`."""
        return self.git("cat-file", "blob", f"{commit}:{self.prefix}{path}")

    def refs(self, *under: str) -> dict[str, str]:
        """Full names and commits of the refs that are or lie below one of `under`."""
        lines = self.git("for-each-ref", "--format=%(refname) %(objectname)", *under).splitlines()
        return dict(line.split(" ") for line in lines)

    def set_refs(self, wanted: Mapping[str, str], *, under: Sequence[str]) -> None:
        """Make the refs that are or lie below one of `under` exactly `wanted`, all at once."""
        there = self.refs(*under)
        edits = [f"update {name} {commit}\n" for name, commit in wanted.items() if there.get(name) != commit]
        edits += [f"delete {name}\n" for name in there if name not in wanted]
        if edits:
            self.git("update-ref", "--stdin", data="".join(edits).encode())


@dataclass(frozen=True)
class Branch:
    """The branch `ratchet/<tag>`, the refs `refs/ratchet/<tag>/<number>`, and the worktree that has it checked out.

    `worktree`: absolute, inside the session's run directory. That the branch is checked out there keeps anybody from
    checking it out elsewhere and having it moved under them.
    """

    repository: Repository
    tag: str
    worktree: Path

    @property
    def name(self) -> str:
        """`ratchet/<tag>`."""
        return f"ratchet/{self.tag}"

    @property
    def folder(self) -> Path:
        """The project's folder in the worktree."""
        return self.worktree / self.repository.prefix

    def check(self) -> None:
        """Raise InputError when the tag makes no branch name, or the branch is checked out somewhere else."""
        try:
            _git(self.repository.project, "check-ref-format", "--branch", self.name)
        except GitError:
            what = f"{self.tag!r} makes no name of a branch"
            raise InputError("iterate.tag", what, "use letters, digits, - and _") from None
        where, ours = None, self.worktree.resolve()
        for line in self.repository.git("worktree", "list", "--porcelain").splitlines():
            if line.startswith("worktree "):
                where = Path(line.removeprefix("worktree "))
            elif line == f"branch refs/heads/{self.name}" and where and where.exists() and where.resolve() != ours:
                do = "check out another branch there, or choose another iterate.tag"
                raise InputError(self.name, f"is checked out in {where}", do)

    def match(self, head: str, discarded: Mapping[int, str]) -> None:
        """Make branch, refs and worktree those of a session whose best is `head`; `discarded` by number of experiment.

        Whatever somebody else has done in the worktree is undone.
        """
        names = {f"refs/heads/{self.name}": head}
        names |= {f"refs/ratchet/{self.tag}/{number}": commit for number, commit in discarded.items()}
        self.repository.set_refs(names, under=(f"refs/heads/{self.name}", f"refs/ratchet/{self.tag}"))
        self.reset(head)

    def reset(self, head: str) -> list[str]:
        """Make the worktree's files those of `head`, and nothing else; returns the paths in it that were otherwise."""
        if not (self.worktree / ".git").is_file() or not self._is_ours():
            self._add(head)
        told = self._inside("status", "--porcelain=v2", "--branch", "-z", "--untracked-files=all", "--ignored")
        entries = [entry for entry in told.split("\0") if entry]
        changed = sorted(entry.split(" ", STATUS_FIELDS.get(entry[0], 1))[-1] for entry in entries if entry[0] != "#")
        if changed or {f"# branch.oid {head}", f"# branch.head {self.name}"} - {*entries}:
            self._inside("symbolic-ref", "HEAD", f"refs/heads/{self.name}")
            self._inside("reset", "-q", "--hard", head)
            self._inside("clean", "-ffdxq")
        return changed

    def _is_ours(self) -> bool:
        try:
            return Path(self._inside("rev-parse", "--show-toplevel").strip("\n")) == self.worktree.resolve()
        except InfrastructureError:
            return False

    def _add(self, head: str) -> None:
        if self.worktree.exists():
            shutil.rmtree(self.worktree)
        self.worktree.parent.mkdir(parents=True, exist_ok=True)
        self.repository.git("worktree", "prune")
        self.repository.git("worktree", "add", "-f", "-q", "-B", self.name, str(self.worktree), head)

    def _inside(self, *arguments: str) -> str:
        for lock in ("index.lock", "HEAD.lock"):  # of a git that was killed in our own worktree
            link = (self.worktree / ".git").read_text(encoding="utf-8").removeprefix("gitdir: ").strip()
            (Path(link) / lock).unlink(missing_ok=True)
        return Repository(self.worktree, "").git(*arguments)


class GitError(Exception):
    """git failed; its last line."""


def _git(where: Path, *arguments: str, data: bytes | None = None, more: Mapping[str, str] | None = None) -> str:
    return git_bytes(where, *arguments, data=data, more=more).decode("utf-8", "surrogateescape")


def git_bytes(where: Path, *arguments: str, data: bytes | None = None, more: Mapping[str, str] | None = None) -> bytes:
    """What a git command in `where` prints; nothing of the user's environment steers it. Raises GitError."""
    environment = {name: value for name, value in child_environment().items() if not name.startswith("GIT_")}
    config = [word for name, value in CONFIG.items() for word in ("-c", f"{name}={value}")]
    try:
        done = subprocess.run(
            ["git", "-C", str(where), *config, *arguments],
            input=data, capture_output=True, env={**environment, "LC_ALL": "C.UTF-8", **(more or {})}, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise InfrastructureError("git", "is not installed", "install git") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise GitError(said[-1] if said else f"exit code {done.returncode}")
    return done.stdout
