"""A killed `dvc repro` loses nothing: real DVC, real SIGKILL of its whole process group, the same bytes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from ratchet.core.fingerprint import tree_digest
from ratchet.settings import child_environment
from toy_training import make_project

OUTPUTS = ("data/train/model", "data/train/history.tsv", "metrics/train.json")


def repro(project: Path) -> subprocess.Popen[str]:
    environment = child_environment(RATCHET_THREADS="1", RATCHET_WANDB="disabled", RATCHET_DEVICE="cpu")
    command = [sys.executable, "-m", "dvc", "repro", "train"]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=project, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )


def finish(project: Path) -> str:
    process = repro(project)
    out, error = process.communicate(timeout=280)
    assert process.returncode == 0, out + error
    return out


def make_dvc_project(folder: Path) -> Path:
    horizon = {"unit": "steps", "value": 400}
    project = make_project(folder, horizon=horizon, checkpoint={"every_steps": 40})
    stage = {
        "cmd": f'"{sys.executable}" -m steps.train',
        "deps": ["arena/train.py", "data/pack/train", "data/tokenizer"],
        "params": ["train"],
        "outs": ["data/train/model", "data/train/history.tsv", "data/train/timing", "data/train/provenance.json"],
        "metrics": [{"metrics/train.json": {"cache": False}}],
    }
    (project / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"train": stage}}))
    subprocess.run([sys.executable, "-m", "dvc", "init", "--no-scm", "-q"], cwd=project, check=True)
    return project


def committed_segments(project: Path) -> int:
    return max(
        (len(ledger.read_bytes().splitlines()) for ledger in project.glob("runs/train/*/ledger.jsonl")), default=0
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_dvc_repro_killed_and_repeated_gives_the_bytes_of_one_that_was_not(tmp_path: Path) -> None:
    unbroken, killed = make_dvc_project(tmp_path / "unbroken"), make_dvc_project(tmp_path / "killed")
    finish(unbroken)
    process = repro(killed)
    deadline = time.monotonic() + 200
    while committed_segments(killed) < 4 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert 4 <= committed_segments(killed) < 11, "the kill came too late to show anything"
    assert not (killed / "metrics/train.json").exists()
    finish(killed)
    assert len(list((killed / "runs/train").glob("*/"))) == 1
    for name in OUTPUTS:
        assert tree_digest(killed / name) == tree_digest(unbroken / name), name
    assert "didn't change, skipping" in finish(killed)
