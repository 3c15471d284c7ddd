"""The real six stages under profiles/smoke.yaml: through the flow, through `dvc repro`, and then from the command line.

Both are clones of this working tree with caches of their own, in folders with a space and letters outside ASCII.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from ratchet.copies import wanted_params
from ratchet.dag import read_dag

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

ROOT = Path(__file__).resolve().parents[2]

MAY_DIFFER = ("provenance.json", "data/train/timing", "data/evaluate/timing.json", "data/plot")
"""Time, memory, place, and the pages that show them (docs/pipeline.md)."""


def clone(target: Path) -> Path:
    """This working tree, uncommitted changes included, as a fresh repository under the smoke profile."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    products = {str(path) for node in read_dag(ROOT).nodes for path in node.outs} | {"dvc.lock"}
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file() and name not in products:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    (target / "params.yaml").write_text(yaml.safe_dump(wanted_params(ROOT, "smoke", []), sort_keys=False))
    who = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false")
    for command in (["init", "-q"], ["add", "-A"], [*who, "commit", "-q", "-m", "start"]):
        subprocess.run(["git", *command], cwd=target, check=True)
    return target


def run(folder: Path, *module: str, activated: bool = False) -> subprocess.CompletedProcess[str]:
    """`python -m …` in `folder`, on one thread, with no activated environment unless asked for."""
    path = [part for part in os.environ["PATH"].split(os.pathsep) if ".venv" not in part]
    environment = {**os.environ, "RATCHET_THREADS": "1", "PREFECT_HOME": str(folder / ".ratchet/prefect")}
    environment["PATH"] = os.pathsep.join([*([str(Path(sys.executable).parent)] if activated else []), *path])
    command = [sys.executable, "-m", *module]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1000)


def contents(project: Path) -> dict[str, str]:
    """sha256 of every file that the stages made."""
    outs = [project / path for node in read_dag(project).nodes for path in node.outs]
    files = [file for out in outs for file in (sorted(out.rglob("*")) if out.is_dir() else [out]) if file.is_file()]
    return {
        file.relative_to(project).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(files)
    }


@pytest.fixture(scope="module")
def through_flow(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str], float]:
    """A project brought up to date by the flow, what that said, and its seconds."""
    project = clone(tmp_path_factory.mktemp("flow") / "через flow ü")
    start = time.monotonic()
    ran = run(project, "flows.pipeline")
    return project, ran, time.monotonic() - start


@pytest.fixture(scope="module")
def through_dvc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project brought up to date by `dvc repro` alone."""
    project = clone(tmp_path_factory.mktemp("dvc") / "через dvc ü")
    ran = run(project, "dvc", "repro", activated=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return project


def test_flow_runs_the_six_stages_to_a_report(through_flow) -> None:
    project, ran, seconds = through_flow
    assert ran.returncode == 0, ran.stdout + ran.stderr[-5000:]
    assert "pipeline: 6 Ran" in ran.stdout
    assert "val_bpb: " in ran.stdout
    assert (project / "data/plot/report.html").stat().st_size > 10_000
    assert not any(node.changes for node in read_dag(project).nodes)
    print(f"smoke through the flow: {seconds:.0f} s")


def test_dvc_repro_alone_gives_the_same_bytes(through_flow, through_dvc: Path) -> None:
    one, other = contents(through_flow[0]), contents(through_dvc)
    assert one.keys() == other.keys()
    differ = [name for name in one if one[name] != other[name]]
    assert [name for name in differ if not any(name.startswith(may) or name.endswith(may) for may in MAY_DIFFER)] == []
    assert "data/train/model/model.safetensors" in one
    assert "metrics/evaluate.json" in one


def test_second_run_is_up_to_date_in_seconds_without_prefect(through_flow) -> None:
    project = through_flow[0]
    start = time.monotonic()
    ran = run(project, "ratchet.cli", "run")
    seconds = time.monotonic() - start
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("up to date: prepare, tokenizer, pack, train, evaluate, plot")
    assert "Starting temporary server" not in ran.stderr
    assert seconds < 60, "10 s on an idle machine"
    assert "didn't change" in run(project, "dvc", "repro", activated=True).stdout


def test_override_runs_in_a_copy_and_leaves_everything_here(through_flow) -> None:
    project = through_flow[0]
    files = ("params.yaml", "dvc.lock", "metrics/train.json", "data/train/model/model.safetensors")
    before = {name: (project / name).read_bytes() for name in files}
    ran = run(project, "ratchet.cli", "run", "-S", "train.seed=2", "--until", "train")
    assert ran.returncode == 0, ran.stdout + ran.stderr[-5000:]
    assert "pipeline: 3 Skipped, 1 Ran" in ran.stdout, "what the seed does not touch comes from the cache"
    assert {name: (project / name).read_bytes() for name in files} == before
    (copy,) = (project / ".ratchet/copies").iterdir()
    model = (copy / "data/train/model/model.safetensors").read_bytes()
    assert model != before["data/train/model/model.safetensors"]
    again = run(project, "ratchet.cli", "run", "-S", "train.seed=2", "--until", "train")
    assert "up to date: prepare, tokenizer, pack, train" in again.stdout
