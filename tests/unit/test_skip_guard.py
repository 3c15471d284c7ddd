"""The guard of tests/conftest.py against silent skips."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

GUARD = Path(__file__).resolve().parents[1] / "conftest.py"

SKIPS = """
import pytest
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
def test_skip_with_a_reason_off_the_list_fails_the_run_and_is_named(tmp_path: Path) -> None:
    shutil.copy(GUARD, tmp_path / "conftest.py")
    (tmp_path / "test_skips.py").write_text(SKIPS)
    (tmp_path / "test_module.py").write_text(MODULE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "."]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ran.returncode == 1, ran.stdout
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
