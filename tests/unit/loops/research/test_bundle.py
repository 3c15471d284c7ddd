"""The bundle: its bytes hang on the history alone, and what is no bundle or has no base here is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.core.errors import InputError
from ratchet.loops.research import bundle
from ratchet.loops.research.worktree import Repository
from toy_session import ARENA, git, toy_repository


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository.of(toy_repository(tmp_path / "projekt Ä"))


def history(repository: Repository) -> tuple[str, dict[str, str]]:
    base = repository.head()
    first = repository.commit(base, "arena/train.py", ARENA + "# ü\n", "erste Änderung\n")
    second = repository.commit(first, "arena/train.py", ARENA + "X = 1\n", "second\n")
    return base, {"refs/heads/ratchet/t": second, "refs/ratchet/t/1": first}


def test_commit_made_again_is_the_same_commit(repository: Repository) -> None:
    assert history(repository) == history(repository)
    _, refs = history(repository)
    assert repository.source(refs["refs/ratchet/t/1"], "arena/train.py") == ARENA + "# ü\n"


def test_bundle_bytes_survive_a_repack(repository: Repository, tmp_path: Path) -> None:
    base, refs = history(repository)
    bundle.write(repository, tmp_path / "a", base, refs)
    repository.set_refs(refs, under=["refs/heads/ratchet/t", "refs/ratchet/t"])
    git(repository.project, "gc", "-q", "--aggressive")
    bundle.write(repository, tmp_path / "b", base, refs)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    git(repository.project, "bundle", "verify", str(tmp_path / "a"))


def test_bundle_without_its_base_here_is_refused(repository: Repository, tmp_path: Path) -> None:
    base, refs = history(repository)
    bundle.write(repository, tmp_path / "a", base, refs)
    other = toy_repository(tmp_path / "other", arena=ARENA + "Y = 1\n")
    with pytest.raises(InputError, match="builds on commit"):
        bundle.restore(other, tmp_path / "a")


@pytest.mark.parametrize("content", [None, b"", b"# v2 git bundle\nnonsense"])
def test_what_is_no_bundle_is_refused(repository: Repository, tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "a").write_bytes(content)
    with pytest.raises(InputError, match=r"cannot be read|is no bundle"):
        bundle.read(repository, tmp_path / "a")


def test_restore_leaves_a_branch_that_is_ahead(repository: Repository, tmp_path: Path) -> None:
    base, refs = history(repository)
    old = {"refs/heads/ratchet/t": refs["refs/ratchet/t/1"]}
    bundle.write(repository, tmp_path / "old", base, old)
    repository.set_refs(refs, under=["refs/heads/ratchet/t", "refs/ratchet/t"])
    bundle.restore(repository.project, tmp_path / "old")
    assert repository.refs("refs/heads/ratchet/t") == {"refs/heads/ratchet/t": refs["refs/heads/ratchet/t"]}
