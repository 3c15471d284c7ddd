"""A profile's first line says how long it takes, and `ratchet run --profile` says that line first."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from toy_project import Toy

ROOT = Path(__file__).resolve().parents[2]
TIME = re.compile(r"\b(?:\d+|an?|half an|two|few) (?:s|seconds?|minutes?|hours?)\b")
RATCHET = [sys.executable, "-c", "from ratchet.cli import main; main()"]


@pytest.mark.parametrize("profile", sorted((ROOT / "profiles").glob("*.yaml")), ids=lambda path: path.stem)
def test_profile_first_line_is_a_comment_with_a_time(profile: Path) -> None:
    first = profile.read_text(encoding="utf-8").partition("\n")[0]
    assert first.startswith("# ")
    assert TIME.search(first), first


@pytest.mark.slow
def test_run_under_a_profile_says_its_first_line_first(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "a project ü", tmp_path / "home")
    toy.write("profiles/seven.yaml", "# Seven: about 3 minutes.\na: {number: 7}\n")
    done = subprocess.run(
        [*RATCHET, "run", "--profile", "seven", "--dry-run"],
        cwd=toy.root,
        env=toy.environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "profile seven: Seven: about 3 minutes."
