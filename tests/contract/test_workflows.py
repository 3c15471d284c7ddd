"""The workflows: the linters find what is wrong, the commands are the Makefile's, who may write runs nobody's code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".github/workflows"
WORKFLOWS = {path.name: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.yaml"))}
JOBS = {f"{name}/{job}": content for name, file in WORKFLOWS.items() for job, content in file["jobs"].items()}
RUNS = {
    f"{job} {number}": step["run"]
    for job, content in JOBS.items()
    for number, step in enumerate(content["steps"])
    if "run" in step
}
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
OF_THE_FORGE = ("docker save", "cat .ratchet/smoke.md >>", "printf", "gh pr comment", ".venv/bin/dvc remote add",
                ".venv/bin/pip install", ".venv/bin/ratchet pull", "bash .ci/run")  # fmt: skip
"""What may stand in a workflow besides `make`: storing and telling, the store's address, and CI's own script."""

WRONG = {
    "${{ github.sha }}": ("${{ github.sah }}", 'property "sah" is not defined'),
    "needs: smoke": ("needs: smok", 'job "comment" needs job "smok" which does not exist'),
    "runs-on: ubuntu-latest": ("runs-on: ubuntu-lates", 'label "ubuntu-lates" is unknown'),
}
"""Text of smoke.yaml → a slip of the pen, and what actionlint says of it."""


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """`make workflows` of the workflows in `folder`, with what is installed."""
    installed = [word for stamp in ("base", "dev", "lint") for word in ("-o", f".venv/{stamp}.stamp")]
    command = ["make", "--no-print-directory", *installed, "workflows", f"WORKFLOWS={folder}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


def test_workflow_with_slips_of_the_pen_does_not_pass_the_linter(tmp_path: Path) -> None:
    text = (FOLDER / "smoke.yaml").read_text(encoding="utf-8")
    for right, (wrong, _) in WRONG.items():
        assert right in text
        text = text.replace(right, wrong)
    (tmp_path / "smoke.yaml").write_text(text, encoding="utf-8")
    ran = lint(tmp_path)
    assert ran.returncode != 0
    assert [said for _, said in WRONG.values() if said not in ran.stdout] == []


def test_workflow_that_grants_too_much_does_not_pass_the_linter(tmp_path: Path) -> None:
    text = (FOLDER / "smoke.yaml").read_text(encoding="utf-8")
    (tmp_path / "smoke.yaml").write_text(text.replace("  contents: read", "  contents: write"), encoding="utf-8")
    ran = lint(tmp_path)
    assert ran.returncode != 0
    assert "excessive-permissions" in ran.stdout + ran.stderr


def test_lint_looks_at_every_workflow() -> None:
    ran = lint(FOLDER)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"Checking {len(WORKFLOWS)} workflow file(s)" in ran.stdout
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^lint:.* workflows\b", makefile, re.MULTILINE)
    assert re.search(r"^test:.* lint\b", makefile, re.MULTILINE), "which is what CI types"


@pytest.mark.parametrize("place", RUNS)
def test_shell_of_a_step_is_sound(place: str) -> None:
    shellcheck = Path(sys.executable).with_name("shellcheck")
    script = re.sub(r"\$\{\{.*?\}\}", "expression", RUNS[place])
    ran = subprocess.run([shellcheck, "--shell=bash", "-"], input=script, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout


@pytest.mark.parametrize("place", RUNS)
def test_commands_of_a_step_are_the_makefiles(place: str) -> None:
    for line in filter(None, map(str.strip, RUNS[place].splitlines())):
        target = re.fullmatch(r"make ([a-z-]+)", line)
        assert line.startswith(OF_THE_FORGE) if target is None else target[1] in TARGETS, line


@pytest.mark.parametrize("job", JOBS)
def test_job_that_may_write_has_no_checkout_and_runs_no_code_of_the_repository(job: str) -> None:
    content: dict[str, Any] = JOBS[job]
    permissions = content.get("permissions", WORKFLOWS[job.partition("/")[0]]["permissions"])
    if "write" in permissions.values():
        assert job == "smoke.yaml/comment"
        assert not [step for step in content["steps"] if "checkout" in step.get("uses", "") or "make" in str(step)]
        assert "head.repo.full_name == github.repository" in content["if"]


def test_ci_runs_on_two_versions_of_python_the_oldest_that_is_promised_among_them() -> None:
    versions = JOBS["ci.yaml/test"]["strategy"]["matrix"]["python"]
    promised = re.search(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert promised
    assert versions[0] == promised[1]
    assert len(set(versions)) == 2
