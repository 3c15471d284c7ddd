"""After set-up nothing needs the network: real stages and commands in a network namespace that has only `lo`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from ratchet.copies import wanted_params
from ratchet.settings import child_environment
from toy_project import PROJECT, Toy
from toy_training import make_project

pytestmark = pytest.mark.slow

ALONE = ("unshare", "--net", "--map-root-user")
Offline = Callable[..., str]


@pytest.fixture(scope="module")
def offline() -> Offline:
    """Run `python -m …` in a folder without a network; its output."""
    seen = "import socket; print([name for _, name in socket.if_nameindex()])"
    if shutil.which("unshare") is None or subprocess.run([*ALONE, "true"], capture_output=True).returncode:
        pytest.skip("this machine does not let a process leave the network")
    interfaces = subprocess.run([*ALONE, sys.executable, "-c", seen], capture_output=True, text=True, check=True)
    assert set(yaml.safe_load(interfaces.stdout)) == {"lo"}

    def run(folder: Path, *module: str, **settings: str) -> str:
        environment = child_environment(PYTHONPATH=str(PROJECT), **settings)
        command = [*ALONE, sys.executable, "-m", *module]
        ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout + ran.stderr

    return run


def test_training_with_its_mirror_needs_no_network(offline: Offline, tmp_path: Path) -> None:
    project = make_project(tmp_path / "project", horizon={"unit": "steps", "value": 2})
    offline(project, "steps.train", RATCHET_WANDB="offline", RATCHET_DEVICE="cpu")
    assert (project / "metrics/train.json").is_file()
    assert list(project.rglob("offline-run-*")), "the mirror wrote nothing"


def test_prepare_from_the_default_corpus_needs_no_network(offline: Offline, tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"prepare": wanted_params(PROJECT, "smoke", [])["prepare"]}))
    shutil.copy(PROJECT / "constraints.txt", tmp_path)
    offline(tmp_path, "steps.prepare")
    assert list((tmp_path / "data/prepare/train").glob("*.parquet"))


def test_dvc_repro_and_status_need_no_network(offline: Offline, tmp_path: Path) -> None:
    toy = Toy(tmp_path / "toy", tmp_path / "home")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}"
    offline(toy.root, "dvc", "repro", "-q", PATH=path)
    assert (toy.root / "metrics/end.json").is_file()
    assert "up to date" in offline(toy.root, "ratchet.cli", "status", PATH=path)
    assert offline(toy.root, "ratchet.cli", "run", PATH=path).startswith("up to date: a, left, right, end")
