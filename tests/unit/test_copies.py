"""Copies on a real git and DVC project whose path has a space and letters outside ASCII."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.copies import copies, name_of, prepare_copy, remove_copy, wanted_params
from ratchet.core.errors import InputError
from ratchet.dag import read_dag
from ratchet.params import read_document
from toy_project import Toy


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    toy = Toy(tmp_path / "с пробелом ü", tmp_path / "home")
    toy.write("profiles/seven.yaml", "# Seven.\na: {number: 7}\n")
    return toy


def snapshot(root: Path) -> dict[str, bytes]:
    """Every file of the project but .git, DVC's own and the copies."""
    own = (".git", ".dvc", ".ratchet")
    files = (path for path in root.rglob("*") if path.is_file() and path.relative_to(root).parts[0] not in own)
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def test_name_is_the_same_for_the_same_wish_and_a_safe_folder_name() -> None:
    assert name_of("smoke", []) == "smoke"
    assert name_of(None, ["train.seed=2"]).startswith("default+train.seed=2+")
    assert name_of(None, ["a.b=1", "c.d=2"])[-8:] == name_of(None, ["c.d=2", "a.b=1"])[-8:]
    assert name_of(None, ["a.b=1"]) != name_of(None, ["a.b=2"])
    assert "/" not in name_of(None, ["a.b=../../x"])


def test_wanted_params_profile_then_overrides_and_typos_refused(tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "params.yaml").write_text("a: {x: 1, y: 1}\nb: {z: 1}\n")
    (tmp_path / "profiles/p.yaml").write_text("a: {x: 2, y: 2}\n")
    assert wanted_params(tmp_path, "p", ["a.y=3"]) == {"a": {"x": 2, "y": 3}, "b": {"z": 1}}
    with pytest.raises(InputError, match="no profile 'q'; the profiles are p"):
        wanted_params(tmp_path, "q", [])
    with pytest.raises(InputError, match="unknown section 'c'; the sections are a, b"):
        wanted_params(tmp_path, None, ["c.z=1"])
    with pytest.raises(InputError, match="no assignment"):
        wanted_params(tmp_path, None, ["a.y"])


@pytest.mark.slow
def test_copy_takes_uncommitted_changes_shares_the_cache_and_leaves_the_project_alone(toy: Toy) -> None:
    Toy.repro(toy.root)
    toy.commit()
    toy.write("work.py", (toy.root / "work.py").read_text() + "# uncommitted\n")
    toy.write("новое ü.txt", "untracked")
    toy.write("ignored.log", "x")
    toy.write(".env", "HF_TOKEN=secret")
    toy.write(".gitignore", (toy.root / ".gitignore").read_text() + "*.log\n")
    (toy.root / "profiles/seven.yaml").rename(toy.root / "profiles/eight.yaml")
    before = snapshot(toy.root)

    copy = prepare_copy(toy.root, "eight", ["right.x=1"])

    assert copy.parent == (toy.root / ".ratchet/copies").resolve()
    assert (copy / "work.py").read_bytes() == (toy.root / "work.py").read_bytes()
    assert (copy / "новое ü.txt").read_text() == "untracked"
    assert not (copy / "ignored.log").exists()
    assert not (copy / ".env").exists(), "ignored by git or not, a secret is in no copy"
    assert read_document(copy / "params.yaml")["a"] == {"number": 7}
    assert read_document(copy / "params.yaml")["right"] == {"x": 1}
    assert (copy / "out/a").read_text() == "1", "the outputs of the project's lock come from its cache"
    Toy.repro(copy)
    assert (copy / "out/a").read_text() == "7"
    assert not (copy / ".dvc/cache/files").exists()
    assert snapshot(toy.root) == before
    assert not any(node.changes for node in read_dag(copy).nodes)


@pytest.mark.slow
def test_copy_found_again_keeps_its_outputs_and_follows_the_project(toy: Toy) -> None:
    copy = prepare_copy(toy.root, "seven", [])
    Toy.repro(copy)
    unchanged = (copy / "work.py").stat().st_mtime_ns
    assert prepare_copy(toy.root, "seven", []) == copy
    assert not any(node.changes for node in read_dag(copy).nodes)
    assert (copy / "work.py").stat().st_mtime_ns == unchanged

    toy.write("extra.txt", "x")
    toy.write("profiles/seven.yaml", "a: {number: 70}\n")
    toy.commit()
    (toy.root / "extra.txt").unlink()
    prepare_copy(toy.root, "seven", [])
    assert not (copy / "extra.txt").exists()
    changed = {node.name for node in read_dag(copy).nodes if node.changes}
    assert changed == {"a"}
    head = toy.sh("git", "rev-parse", "HEAD").stdout
    assert toy.sh("git", "-C", str(copy), "rev-parse", "HEAD").stdout == head

    assert copies(toy.root) == [copy]
    with pytest.raises(InputError, match="no copy 'eight'"):
        remove_copy(toy.root, "eight")
    remove_copy(toy.root, "seven")
    assert copies(toy.root) == []


@pytest.mark.slow
def test_copy_that_another_process_has_or_a_stage_runs_in_is_refused_and_stays_as_it_is(toy: Toy) -> None:
    code = (
        "import os, sys; from pathlib import Path; from ratchet.copies import prepare_copy\n"
        "prepare_copy(Path('.'), 'seven', [])\n"
        "os.execv(sys.executable, [sys.executable, '-c', 'print(1, flush=True); input()'])\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code], cwd=toy.root, env=toy.environment(), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "1\n"
        toy.write("work.py", "print()\n")
        with pytest.raises(InputError, match=rf"copies/seven: is in use by pid {holder.pid}; wait for it"):
            prepare_copy(toy.root, "seven", [])
        with pytest.raises(InputError, match="is in use"):
            remove_copy(toy.root, "seven")
        (copy,) = copies(toy.root)
        assert (copy / "work.py").read_text() != "print()\n"
    finally:
        holder.communicate("")
    (copy / ".dvc/tmp").mkdir(exist_ok=True)
    (copy / ".dvc/tmp/rwlock").write_text(json.dumps({"write": {"out": {"pid": os.getpid(), "cmd": ""}}}))
    with pytest.raises(InputError, match=f"is in use by pid {os.getpid()}"):
        prepare_copy(toy.root, "seven", [])
    (copy / ".dvc/tmp/rwlock").unlink()
    assert (prepare_copy(toy.root, "seven", []) / "work.py").read_text() == "print()\n"


@pytest.mark.slow
def test_copy_deleted_by_hand_is_made_anew(toy: Toy) -> None:
    import shutil

    copy = prepare_copy(toy.root, "seven", [])
    shutil.rmtree(copy)
    assert prepare_copy(toy.root, "seven", []) == copy
    assert (copy / "work.py").is_file()


def test_copy_without_a_commit_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("a: {x: 1}\n")
    with pytest.raises(InputError, match=r"git rev-parse failed.*git commit"):
        prepare_copy(tmp_path, None, ["a.x=2"])
