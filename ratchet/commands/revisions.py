"""The project as one revision of git has it: git's files, and DVC's outputs as dvc.lock names them there.

An output is read from DVC's cache, else from the remote, never from the working tree. Refuses to know what a named
artifact is fetched for.
"""

from __future__ import annotations

import difflib
import json
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from ratchet.core.errors import InputError, first_line
from ratchet.loops.research.worktree import GitError, git_bytes
from ratchet.remotes import is_clients

if TYPE_CHECKING:
    from dvc.annotations import Artifact
    from dvc.repo import Repo
    from dvc.stage import PipelineStage
    from dvc_data.index import DataIndexEntry

CHECKOUT = "checkout"
"""What the version is called when results lie here that no commit has."""
RESULTS = ("dvc.lock", "dvc.yaml", "params.yaml", "metrics")
SHORT = 10
VERB = "get"


@dataclass(frozen=True)
class Revision:
    """`name`: as asked for; of the checkout its short commit, or CHECKOUT. `commit`: None for CHECKOUT."""

    name: str
    commit: str | None
    date: str | None
    repo: Repo

    def artifacts(self) -> dict[str, Artifact]:
        """The named artifacts of its dvc.yaml."""
        return self.repo.artifacts.read().get("dvc.yaml", {})

    def content(self, path: str) -> bytes:
        """A file of git's or an output of DVC's. Raises FileNotFoundError when this revision has none, or its bytes
        are nowhere."""
        if self.entry(path) is not None:
            return self._outputs().fs.cat_file(path)
        with self.repo.fs.open(self._absolute(path), "rb") as file:
            return file.read()

    def text(self, path: str) -> str | None:
        """`content` as text; None when there is none."""
        try:
            return self.content(path).decode()
        except FileNotFoundError:
            return None

    def json(self, path: str) -> dict[str, Any] | None:
        """`text` as a JSON object. Raises InputError when it is none."""
        text = self.text(path)
        return None if text is None else json_object(text, f"{path} of {self.name}")

    def entry(self, path: str) -> DataIndexEntry | None:
        """What dvc.lock has of an output, or of a file or folder inside one; None when it names no such thing.

        Raises DataIndexDirError when it lies in a folder whose list is neither in the cache nor in the remote.
        """
        try:
            return self.repo.index.data["repo"][PurePosixPath(path).parts]
        except KeyError:
            return None

    def stage(self, path: str) -> PipelineStage | None:
        """The stage of dvc.yaml whose output `path` is or lies in."""
        from dvc.stage import PipelineStage

        wanted = self._absolute(path)
        for out in self.repo.index.outs:
            if wanted == out.fs_path or self.repo.fs.isin(wanted, out.fs_path):
                return out.stage if isinstance(out.stage, PipelineStage) else None
        return None

    def above(self, stage: PipelineStage) -> list[PipelineStage]:
        """The stages of dvc.yaml whose outputs `stage` reads, directly or not."""
        import networkx
        from dvc.stage import PipelineStage

        found = networkx.descendants(self.repo.index.graph, stage)
        return [other for other in self.repo.index.stages if other in found and isinstance(other, PipelineStage)]

    def places(self, path: str) -> list[str]:
        """Where all of an output's bytes are: `cache`, `remote`, both, or neither. Raises what `entry` does.

        `remote (no answer)` when it could not be asked.
        """
        entries, found = self._files(path), list[str]()
        for place in ("cache", "remote") if entries else ():
            storage = getattr(self.repo.index.data["repo"].storage_map[entries[0].key], place)
            try:
                with stores_errors():
                    if storage is not None and all(storage.bulk_exists(entries, refresh=True).values()):
                        found.append(place)
            except OSError:
                found.append(f"{place} (no answer)")
        return found

    def size(self, path: str) -> int | None:
        """Bytes of an output; None when there is none. Raises FileNotFoundError: dvc.lock does not tell."""
        for out in self.repo.index.outs:
            if out.fs_path == self._absolute(path):
                return None if out.meta is None else out.meta.size
        fs = self._outputs()
        return None if self.entry(path) is None else sum(len(fs.fs.cat_file(file)) for file in fs.find(path))

    def fetch(self, path: str, folder: Path) -> None:
        """Copy an output into `folder`: a folder's contents, a file under its own name. Raises FileNotFoundError."""
        fs = self._outputs()
        isdir = fs.isdir(path)
        for file in fs.find(path):
            target = folder / (Path(file).relative_to(path) if isdir else Path(file).name)
            target.parent.mkdir(parents=True, exist_ok=True)
            with fs.open(file, "rb") as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink)

    def _absolute(self, path: str) -> str:
        return self.repo.fs.join(self.repo.root_dir, *PurePosixPath(path).parts)

    def _files(self, path: str) -> list[DataIndexEntry]:
        if self.entry(path) is None:
            return []
        return [entry for _, entry in self.repo.index.data["repo"].iteritems(PurePosixPath(path).parts)]

    def _outputs(self) -> Any:
        from dvc.fs.data import DataFileSystem

        return DataFileSystem(index=self.repo.index.data["repo"])


@contextmanager
def stores_errors() -> Generator[None]:
    """What says that a store lacks something, does not answer, or that its client is not installed, as OSError."""
    from dvc.exceptions import DvcException
    from dvc_data.index import DataIndexDirError
    from dvc_objects.fs.errors import RemoteMissingDepsError

    try:
        yield
    except OSError:
        raise
    except Exception as error:
        if not isinstance(error, DvcException | DataIndexDirError | ImportError | RemoteMissingDepsError) and (
            not is_clients(error)
        ):
            raise
        raise OSError(first_line(error)) from error


@contextmanager
def opened(project: Path, version: str | None, artifact: str | None = None) -> Generator[Revision]:
    """The revision `version` of `project`; without one what is checked out. Raises InputError: no such revision.

    A tag `ARTIFACT@VERSION`, as DVC's registry (GTO) makes them, comes before a branch, tag or commit VERSION.
    """
    from dvc.repo import Repo

    name, commit = _resolved(project, version, artifact)
    date = git_bytes(project, "show", "-s", "--format=%cs", commit).decode().strip() if commit else None
    with Repo(str(project), config=_remotes(project)) as repo, repo.switch(commit or "workspace"):
        yield Revision(name, commit, date, repo)


def _remotes(project: Path) -> dict[str, Any]:
    """Remotes, keys and cache as they are configured here now: an old revision knows none that came later."""
    from dvc.repo import Repo

    with Repo(str(project)) as repo:
        return {part: dict(repo.config[part]) for part in ("core", "remote", "cache")}


def _resolved(project: Path, version: str | None, artifact: str | None) -> tuple[str, str | None]:
    if version is None:
        head = commit_of(project, "HEAD")
        changed = head is None or _changes(project)
        return (CHECKOUT, None) if changed or head is None else (head[:SHORT], head)
    for ref in (f"refs/tags/{artifact}@{version}", version):
        if commit := commit_of(project, ref):
            return version, commit
    near = difflib.get_close_matches(version, [*registered(project, artifact or ""), *_named(project)], n=1)
    hint = f"did you mean {near[0]!r}?" if near else "name a tag, a branch or a commit: see `git log --decorate`"
    raise InputError(VERB, f"no revision {version!r} and no tag {artifact}@{version}", hint)


def _changes(project: Path) -> bytes:
    return git_bytes(project, "--no-optional-locks", "status", "--porcelain", "--", *RESULTS)


def registered(project: Path, artifact: str) -> list[str]:
    """The versions of `artifact` that have a tag `ARTIFACT@VERSION`, the newest tag first."""
    lines = git_bytes(project, "for-each-ref", "--sort=-creatordate", "--format=%(refname:strip=2)", "refs/tags")
    return [tag.partition("@")[2] for tag in lines.decode().splitlines() if tag.startswith(f"{artifact}@")]


def _named(project: Path) -> list[str]:
    lines = git_bytes(project, "for-each-ref", "--format=%(refname:strip=2)", "refs/tags", "refs/heads")
    return lines.decode().splitlines()


def json_object(text: str | bytes, where: str) -> dict[str, Any]:
    """The object that the file `where` of a revision holds. Raises InputError."""
    try:
        found: Any = json.loads(text)
    except ValueError as error:  # of JSON, and of UTF-8
        raise InputError(where, f"not JSON: {error}", "name another revision") from None
    if not isinstance(found, dict):
        raise InputError(where, f"holds a {type(found).__name__}, not an object", "name another revision")
    return found


def commit_of(project: Path, ref: str) -> str | None:
    """The commit that `ref` is for git; None when it is none."""
    try:
        return git_bytes(project, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}").decode().strip()
    except GitError:
        return None
