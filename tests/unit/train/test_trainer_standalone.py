"""`python arena/train.py > run.log 2>&1` and the published grep, as a user types them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from toy_training import make_project

from ratchet.settings import child_environment


def run_arena(project: Path) -> int:
    environment = child_environment(RATCHET_THREADS="1", RATCHET_WANDB="disabled", RATCHET_DEVICE="cpu")
    command = f'"{sys.executable}" arena/train.py > run.log 2>&1'
    return subprocess.run(command, shell=True, cwd=project, env=environment, check=False, timeout=280).returncode


@pytest.mark.slow
def test_standalone_prints_the_published_block_and_the_published_grep_finds_it(tmp_path: Path) -> None:
    project = make_project(tmp_path / "my project")
    assert run_arena(project) == 0, (project / "run.log").read_text()
    grep = ["grep", r"^val_bpb:\|^peak_vram_mb:", "run.log"]
    found = subprocess.run(grep, cwd=project, capture_output=True, text=True, check=True).stdout.splitlines()
    values = dict(line.split() for line in found)
    assert 0.5 < float(values["val_bpb:"]) < 8
    assert float(values["peak_vram_mb:"]) > 50
    block = (project / "run.log").read_text().partition("---\n")[2].splitlines()
    keys = "val_bpb training_seconds total_seconds peak_vram_mb mfu_percent total_tokens_M num_steps num_params_M depth"
    assert [line.partition(":")[0] for line in block] == keys.split()
    assert not (project / "data/train").exists()


@pytest.mark.slow
def test_standalone_without_packed_data_names_the_command_that_makes_it(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project")
    (project / "data/pack/val").rename(project / "elsewhere")
    assert run_arena(project) == 2
    log = (project / "run.log").read_text()
    assert log == "data/pack/val: no such folder; make the data once with `make run`, or `dvc repro pack`\n"
