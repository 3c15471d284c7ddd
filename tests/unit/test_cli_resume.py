"""Trainings of toy size through the command line: stopped, continued, damaged; and runs of copies as the project's."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefect_server import prefect_server
from toy_project import Toy
from toy_training import make_project

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DVC_YAML = """
    stages:
      train:
        cmd: python -m steps.train
        deps: [arena/train.py, data/pack/train, data/tokenizer]
        params: [train]
        outs: [data/train/model, data/train/history.tsv, data/train/timing, data/train/provenance.json]
        metrics: [metrics/train.json: {cache: false}]
    """


def ratchet(toy: Toy, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**toy.environment(), "COLUMNS": "200", "RATCHET_DEVICE": "cpu", "RATCHET_THREADS": "1",
                   "RATCHET_WANDB": "disabled"}  # fmt: skip
    command = [sys.executable, "-m", "ratchet.cli", *arguments]
    return subprocess.run(command, cwd=toy.root, env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def prefect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """Prefect's folder and the address of its server."""
    home = tmp_path_factory.mktemp("prefect")
    with prefect_server(home) as api:
        yield home, api


@pytest.fixture
def toy(tmp_path: Path, prefect: tuple[Path, str]) -> Toy:
    """A project whose one stage trains for ten steps; its data are tracked, so that copies have them."""
    toy = Toy(tmp_path / "с пробелом ü", *prefect)
    (toy.root / "work.py").unlink()
    made = make_project(tmp_path / "made")
    shutil.copytree(made, toy.root, dirs_exist_ok=True)
    toy.write("dvc.yaml", DVC_YAML)
    toy.write(".gitignore", "/.ratchet/\n/runs/\n/data/train/\n__pycache__/\n")
    toy.commit()
    return toy


def runs(toy: Toy) -> list[dict[str, object]]:
    return json.loads(ratchet(toy, "runs", "ls", "--json").stdout)


def test_copies_share_the_project_s_runs_so_one_stop_at_continues_the_other(toy: Toy) -> None:
    first = ratchet(toy, "run", "-S", "train.stop_at=4")
    assert first.returncode == 0, first.stdout + first.stderr
    (run,) = runs(toy)
    assert (run["state"], run["steps"]) == ("stopped", 4)
    assert not list((toy.root / ".ratchet/copies").glob("*/runs"))
    assert "step 4/" in ratchet(toy, "logs", "train", "-S", "train.stop_at=4").stdout
    nowhere = ratchet(toy, "logs", "train", "-S", "train.stop_at=7")
    assert (nowhere.returncode, nowhere.stderr.rpartition("; ")[2]) == (2, "type `ratchet run -S train.stop_at=7`\n")

    shutil.rmtree(toy.root / ".ratchet/copies")  # `make clean`
    further = ratchet(toy, "run", "-S", "train.stop_at=8")
    assert further.returncode == 0, further.stdout + further.stderr
    (same,) = runs(toy)
    assert (same["fingerprint"], same["steps"]) == (run["fingerprint"], 8)
    assert "step 5/8" in further.stderr
    assert "step 4/8" not in further.stderr

    resumed = ratchet(toy, "resume", "train", "-S", "train.stop_at=9")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert runs(toy)[0]["steps"] == 9


def test_resume_of_a_damaged_run_is_refused_and_auto_takes_the_checkpoint_before(toy: Toy) -> None:
    assert ratchet(toy, "run", "-S", "train.stop_at=6").returncode == 0
    (run,) = runs(toy)
    newest = max((toy.root / str(run["path"]) / "checkpoints").iterdir())
    (newest / "model.safetensors").write_bytes(b"torn")
    assert runs(toy)[0]["state"] == "damaged"

    refused = ratchet(toy, "resume", "train")
    assert refused.returncode == 2
    assert "cannot be resumed: damaged" in refused.stderr
    assert refused.stderr.endswith("add `--resume auto`\n")

    changed = ratchet(toy, "resume", "train", "--resume", "auto", "-S", "train.seed=2")
    assert changed.returncode == 2, changed.stdout + changed.stderr
    assert "train.seed" in changed.stderr or "params.seed 1 → 2" in changed.stderr

    resumed = ratchet(toy, "resume", f"train/{run['fingerprint']}", "--resume", "auto")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    (done,) = runs(toy)
    assert (done["fingerprint"], done["state"], done["steps"]) == (run["fingerprint"], "finished", 10)
    assert len((toy.root / "data/train/history.tsv").read_text().splitlines()) == 11
