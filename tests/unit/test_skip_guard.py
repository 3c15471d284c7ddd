"""The guards of tests/conftest.py against silent skips and against a working directory that is not put back."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

GUARD = Path(__file__).resolve().parents[1] / "conftest.py"

SKIPS = """
import os
import pytest
def test_leaves(tmp_path): os.chdir(tmp_path)
def test_call(): pytest.skip("today is Monday")
@pytest.mark.skip(reason="flaky")
def test_mark(): pass
def test_passes(): pass
"""

MODULE = """
import pytest
pytest.skip("no such module", allow_module_level=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [[], ["-n", "2", "--dist", "loadgroup"]], ids=["one process", "two workers"])
def test_skip_off_the_list_and_a_folder_not_put_back_fail_the_run_and_are_named(
    tmp_path: Path, workers: list[str]
) -> None:
    shutil.copy(GUARD, tmp_path / "conftest.py")
    (tmp_path / "test_skips.py").write_text(SKIPS)
    (tmp_path / "test_module.py").write_text(MODULE)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        *workers,
        ".",
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ran.returncode == 1, ran.stdout
    (left,) = [line for line in ran.stdout.splitlines() if re.match(r"E +AssertionError: .* leaves the working", line)]
    assert "test_skips.py::test_leaves" in left
    wrong = [line for line in ran.stdout.splitlines() if line.startswith("SKIPPED WRONGLY")]
    assert [next(word for word in ("Monday", "flaky", "no such module") if word in line) for line in sorted(wrong)] == [
        "no such module",
        "Monday",
        "flaky",
    ]


@pytest.mark.parametrize(
    ("reason", "has", "wrong"),
    [
        ("needs a CUDA device", False, 0),
        ("needs a CUDA device", True, 1),
        ("needs patience", False, 1),
    ],
    ids=["lacks it", "has it after all", "not on the list"],
)
def test_wrong_skips_depend_on_what_the_machine_has(reason: str, has: bool, wrong: int) -> None:
    guard: dict[str, object] = {}
    exec(compile(GUARD.read_text(), str(GUARD), "exec"), guard)
    found = guard["wrong_skips"]([("t", reason)], {"CUDA": lambda: has})  # type: ignore[operator]
    assert len(found) == wrong
