"""Files and folders appear whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ratchet.core import atomic
from ratchet.core.errors import InfrastructureError, InputError


def names(folder: Path) -> list[str]:
    return sorted(item.name for item in folder.iterdir())


def test_write_json_is_read_back_and_nan_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "ä.json"
    atomic.write_json(path, {"ö": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        atomic.write_json(path, {"ö": float("nan")})
    assert path.read_text(encoding="utf-8") == '{\n  "ö": 1\n}\n'
    assert names(path.parent) == ["ä.json"]


def test_write_bytes_full_disk_leaves_the_old_file_and_no_temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    atomic.write_bytes(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        atomic.write_bytes(path, b"new")
    assert (path.read_bytes(), names(tmp_path)) == (b"old", ["file"])


def test_output_file_appears_on_success_and_not_on_error(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    with pytest.raises(FileNotFoundError), atomic.output_file(path) as temp:
        (temp.write_text("half"), Path("/no such file").read_text())
    assert names(path.parent) == []
    with atomic.output_file(path) as temp:
        temp.write_text("whole")
        assert not path.exists()
    assert path.read_text() == "whole"


def test_output_folder_replaces_the_old_one_on_success_and_keeps_it_on_error(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with atomic.output_folder(path) as temp:
        (temp / "sub").mkdir()
        (temp / "sub" / "a").write_text("1")
    with pytest.raises(FileNotFoundError), atomic.output_folder(path) as temp:
        ((temp / "b").write_text("2"), Path("/no such file").read_text())
    assert ((path / "sub" / "a").read_text(), names(tmp_path)) == ("1", ["out"])
    with atomic.output_folder(path) as temp:
        (temp / "c").write_text("3")
    assert (names(path), names(tmp_path)) == (["c"], ["out"])


def test_sweep_removes_what_the_dead_left_and_keeps_what_the_living_and_others_have(tmp_path: Path) -> None:
    mark = atomic.TEMP_MARK
    dead = [f".a{mark}4194303", f".b{mark}old-4194303", f".c{mark}{os.getpid()}"]
    alive = [f".d{mark}{os.getppid()}", f".e{mark}old-{os.getppid()}", f".f{mark}word", f".g{mark}", "h", ".i"]
    for name in dead:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    for name in alive:
        (tmp_path / name).touch()
    assert sorted(path.name for path in atomic.sweep(tmp_path)) == dead
    assert names(tmp_path) == sorted(alive)
    atomic.sweep(tmp_path, alone=True)
    assert names(tmp_path) == [".i", "h"]
    assert atomic.sweep(tmp_path / "none") == []


def test_json_line_is_one_line_and_names_where_nan_is_refused() -> None:
    assert atomic.json_line({"text": "two\nlines \u2028 é"}, "x").count("\n") == 1
    with pytest.raises(InputError, match="ledger: cannot be kept as JSON"):
        atomic.json_line([float("nan")], "ledger")


def test_errors_are_one_line_with_their_exit_code() -> None:
    error = InputError(Path("a b.yaml"), "two\nlines", "mend   it")
    assert (str(error), error.exit_code) == ("a b.yaml: two lines; mend it", 2)
    assert InfrastructureError("x", "y", "z").exit_code == 3
