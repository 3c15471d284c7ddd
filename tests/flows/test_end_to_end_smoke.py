"""The real stages under profiles/smoke.yaml: through the flow, through `dvc repro`, and then from the command line.

Both are clones of this working tree with caches of their own, in folders with a space and letters outside ASCII.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ratchet.dag import read_dag
from smoke_clone import clone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

ROOT = Path(__file__).resolve().parents[2]

MAY_DIFFER = (
    "provenance.json",
    "data/train/timing",
    "data/evaluate/timing.json",
    "data/team-timing.json",
    "data/plot",
    "run.log",
)
"""Time, memory, place, and the pages that show them (docs/pipeline.md)."""

RESULTS = "data/iterate/results.tsv"
SKILL_HISTORY, SKILL_SUMMARY = "data/skill/history.json", "data/skill/summary.json"
SKILL_TIMES = {"timing", "wall_time_s", "seconds"}
"""What is measured in the two files above, whose fields are the published ones."""
MEASURED = {"seconds", "memory_gb", "cost"}
"""Columns of a session's table that differ from run to run."""


def run(folder: Path, *module: str, activated: bool = False) -> subprocess.CompletedProcess[str]:
    """`python -m …` in `folder`, on one thread, with no activated environment unless asked for."""
    path = [part for part in os.environ["PATH"].split(os.pathsep) if ".venv" not in part]
    environment = {**os.environ, "RATCHET_THREADS": "1", "PREFECT_HOME": str(folder / ".ratchet/prefect")}
    environment["RATCHET_DOWNLOADS"] = str(ROOT / ".ratchet/downloads")  # the converted model, made once for all clones
    environment["PATH"] = os.pathsep.join([*([str(Path(sys.executable).parent)] if activated else []), *path])
    command = [sys.executable, "-m", *module]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1000)


def contents(project: Path) -> dict[str, str]:
    """sha256 of every file that the stages made."""
    outs = [project / path for node in read_dag(project).nodes for path in node.outs]
    files = [file for out in outs for file in (sorted(out.rglob("*")) if out.is_dir() else [out]) if file.is_file()]
    found = {file.relative_to(project).as_posix(): file.read_bytes() for file in sorted(files)}
    found[RESULTS] = repeatable(found[RESULTS])
    found[SKILL_HISTORY] = b"\n".join(without_time(row) for row in json.loads(found[SKILL_HISTORY]))
    found[SKILL_SUMMARY] = without_time(json.loads(found[SKILL_SUMMARY]))
    return {name: hashlib.sha256(content).hexdigest() for name, content in found.items()}


def without_time(row: dict[str, Any]) -> bytes:
    """A row of the skill loop's as JSON, without what is measured."""
    assert SKILL_TIMES & set(row)
    return json.dumps({name: value for name, value in row.items() if name not in SKILL_TIMES}).encode()


def repeatable(table: bytes) -> bytes:
    """A session's table without what is measured."""
    rows = [line.split("\t") for line in table.decode().splitlines()]
    kept = [place for place, name in enumerate(rows[0]) if name not in MEASURED]
    assert len(kept) == len(rows[0]) - len(MEASURED)
    return "\n".join("\t".join(row[place] for place in kept) for row in rows).encode()


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


def test_flow_runs_all_stages_to_a_report(through_flow) -> None:
    project, ran, seconds = through_flow
    assert ran.returncode == 0, ran.stdout + ran.stderr[-5000:]
    assert "pipeline: 9 Ran" in ran.stdout
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
    assert ran.stdout.startswith("up to date: prepare, tokenizer, pack, train, evaluate, iterate, skill, team, plot")
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
