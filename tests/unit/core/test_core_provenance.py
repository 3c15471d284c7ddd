"""Provenance: real git repositories, dirty and clean, and none at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.core import provenance
from ratchet.core.fingerprint import file_digest
from ratchet.core.provenance import collect


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    return subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "ein Ordner mit ü"
    (root / "metrics").mkdir(parents=True)
    (root / "constraints.txt").write_text("torch==2.13.0\n")
    (root / "metrics" / "train.json").write_text("{}")
    (root / ".gitignore").write_text("data\n")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    return root


def test_collect_clean_tree_names_its_commit(repository: Path) -> None:
    found = collect(repository, device="cpu", threads=2, image_digest=None)
    assert found["commit"] == git(repository, "rev-parse", "HEAD").strip()
    assert (found["dirty"], found["dirty_diff_sha256"]) == (False, None)
    assert found["constraints_sha256"] == file_digest(repository / "constraints.txt")
    assert (found["device"], found["threads"], found["image_digest"]) == ("cpu", 2, None)
    assert found["argv"] == sys.argv
    assert found["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["versions"]["torch"]
    json.dumps(found, allow_nan=False)


def test_collect_dirty_hash_follows_tracked_and_untracked_changes_but_not_ignored_ones(repository: Path) -> None:
    seen: set[str] = set()
    for name, text in (("constraints.txt", "torch==2\n"), ("new.py", "1"), ("new.py", "2"), ("sub dir/ü.py", "3")):
        (repository / name).parent.mkdir(exist_ok=True)
        (repository / name).write_text(text)
        found = collect(repository)
        assert found["dirty"] is True
        seen.add(found["dirty_diff_sha256"])
    (repository / "new.py").rename(repository / "renamed.py")
    seen.add(collect(repository)["dirty_diff_sha256"])
    assert len(seen) == 5
    (repository / "data").mkdir()
    (repository / "data" / "big").write_text("ignored")
    assert collect(repository)["dirty_diff_sha256"] in seen


def test_collect_excluded_results_do_not_make_a_tree_dirty(repository: Path) -> None:
    (repository / "metrics" / "train.json").write_text('{"loss": 1}')
    (repository / "metrics" / "new.json").write_text("{}")
    (repository / "dvc.lock").write_text("x")
    assert collect(repository)["dirty"] is True
    assert collect(repository, exclude=("metrics", "dvc.lock"))["dirty"] is False


def test_collect_outside_a_repository_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "PACKAGES", ("no-such-package",))
    found = collect(tmp_path)
    assert (found["commit"], found["dirty"], found["dirty_diff_sha256"], found["constraints_sha256"]) == (None,) * 4
    assert found["versions"]["no-such-package"] is None


def test_collect_without_git_installed_has_no_commit(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert collect(repository)["commit"] is None


def test_collect_changes_nothing_in_the_repository(repository: Path) -> None:
    os.utime(repository / "constraints.txt", (1, 1))  # git would like to refresh its index now
    before = {path: path.stat().st_mtime_ns for path in repository.rglob("*")}
    collect(repository)
    assert {path: path.stat().st_mtime_ns for path in repository.rglob("*")} == before
