"""The guards of tests/conftest.py against silent skips and against a working directory that is not put back."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

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
    found = guard()["wrong_skips"]([("t", reason)], {"CUDA": lambda: has})
    assert len(found) == wrong


UNSHARES = ("this machine does not let a process mount a file system", "does not let a process leave the network")
WRONG_IN_CI = ("needs a browser: none", "needs a Docker engine", "needs Docker Compose")
WRONG_FOR_ROOT_IN_CI = (*UNSHARES, "needs root and dockerd: it is about root's own home")
CUDA = ("needs a CUDA device", "needs a machine without CUDA")


@pytest.mark.parametrize("user", [0, 1000], ids=["root", "somebody"])
@pytest.mark.parametrize("ci", ["true", ""], ids=["CI", "elsewhere"])
@pytest.mark.parametrize("cuda", [True, False], ids=["CUDA", "no CUDA"])
def test_wrong_skips_are_more_in_ci_and_most_for_root_there(
    monkeypatch: pytest.MonkeyPatch, user: int, ci: str, cuda: bool
) -> None:
    """On a machine where no program is found."""
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr("os.geteuid", lambda: user)
    monkeypatch.setattr("torch.cuda.is_available", lambda: cuda)
    monkeypatch.setattr("shutil.which", lambda _: None)
    here = guard()
    skipped = [(reason, reason) for reason in (*WRONG_IN_CI, *WRONG_FOR_ROOT_IN_CI, *CUDA)]
    found = {line.partition(": skipped for")[0] for line in here["wrong_skips"](skipped, here["MAY_LACK"])}
    wrong = {CUDA[0] if cuda else CUDA[1]}
    wrong |= set(WRONG_IN_CI) if ci else set()
    wrong |= set(WRONG_FOR_ROOT_IN_CI) if ci and user == 0 else set()
    assert found == wrong


def guard() -> dict[str, Any]:
    """What tests/conftest.py defines."""
    defined: dict[str, Any] = {}
    exec(compile(GUARD.read_text(), str(GUARD), "exec"), defined)
    return defined
