"""`git checkout` of an older commit and `dvc repro` bring the older results back without running a stage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from toy_project import Toy


def repro_that_may_run_nothing(toy: Toy, tmp_path: Path) -> str:
    """`dvc repro` where every stage's `python` fails: what it gives must come from the cache."""
    broken = tmp_path / "bin/python"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho a stage ran >&2\nexit 9\n")
    broken.chmod(0o755)
    path = os.pathsep.join([str(broken.parent), os.environ["PATH"]])
    command = [sys.executable, "-m", "dvc", "repro"]
    done = subprocess.run(
        command, cwd=toy.root, env=toy.environment() | {"PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def results(toy: Toy) -> dict[str, str]:
    files = sorted(path for folder in ("out", "metrics") for path in (toy.root / folder).rglob("*") if path.is_file())
    return {str(path.relative_to(toy.root)): path.read_text() for path in files if path.name != ".gitignore"}


@pytest.mark.slow
def test_dvc_repro_after_git_checkout_of_an_older_commit_restores_older_outputs(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "toy", tmp_path / "home")
    found: list[dict[str, str]] = []
    for number in (1, 2):
        toy.write("params.yaml", f"a: {{number: {number}}}\nleft: {{fail: false, sleep: 0}}\nright: {{}}\nend: {{}}\n")
        toy.repro(toy.root)
        toy.commit()
        found.append(results(toy))
    old, new = found
    assert old.keys() == new.keys()
    assert all(old[name] != new[name] for name in old)
    toy.sh("git", "checkout", "-q", "HEAD~1")
    assert results(toy) != old
    assert "skipping run, checking out outputs" in repro_that_may_run_nothing(toy, tmp_path)
    assert results(toy) == old
    assert json.loads(old["metrics/end.json"]) != json.loads(new["metrics/end.json"])
