"""One candidate's training as the research loop hands it to a sandbox: what it reads, writes, and says last."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ratchet.core.errors import InputError
from ratchet.settings import settings
from ratchet.train import experiment_job
from ratchet.train.job import ExperimentJob, Published
from tests.support.toy_training import KNOBS, TRAIN, launch, make_project

SHORT = TRAIN | {"horizon": {"unit": "steps", "value": 2}, "knobs": KNOBS}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_project(tmp_path_factory.mktemp("project"))


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("RATCHET_THREADS", "1")
    monkeypatch.setenv("RATCHET_DEVICE", "cpu")
    monkeypatch.setenv("RATCHET_WANDB", "offline")
    settings.cache_clear()
    yield
    settings.cache_clear()


def job_file(project: Path, where: Path, *, arena: Path | None = None, **more: Any) -> Path:
    """JOB.json for the toy project with its outputs in `where`."""
    outputs = Published(where / "model", where / "history.tsv", where / "timing", where / "metrics.json")
    job = ExperimentJob(
        params=SHORT,
        rows=project / "data/pack/train",
        tokenizer=project / "data/tokenizer",
        arena=arena or project / "arena/train.py",
        runs=where / "runs",
        outputs=outputs,
    )
    path = where / "job.json"
    path.write_text(json.dumps(job.as_json() | more))
    assert more or ExperimentJob.read(path) == job
    return path


def test_job_gives_the_bytes_that_the_stage_gives_and_mirrors_nothing(project: Path, tmp_path: Path) -> None:
    experiment_job.run(job_file(project, tmp_path))
    stage = tmp_path / "stage"
    launch(project, stage, horizon=SHORT["horizon"])
    for name in ("model/model.safetensors", "model/arena.py", "model/spec.json", "history.tsv", "metrics.json"):
        assert (tmp_path / name).read_bytes() == (stage / name).read_bytes()
    assert not list((tmp_path / "runs").rglob("*wandb*"))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"rows": 3}, "is no job"),
        ({"outputs": {"model": "m"}}, "is no job"),
        ({"params": SHORT | {"horizn": {}}}, "unknown key 'train.horizn'"),
    ],
)
def test_job_that_is_none_is_told_in_one_line(project: Path, tmp_path: Path, more: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as error:
        experiment_job.run(job_file(project, tmp_path, **more))
    assert says in str(error.value)


def test_arena_that_raises_ends_with_its_line_and_publishes_nothing(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    arena = tmp_path / "train.py"
    arena.write_text("def build(spec):\n    raise RuntimeError('two\\nlines')\n")
    path = job_file(project, tmp_path, arena=arena, params=SHORT | {"knobs": {}})
    monkeypatch.setattr(sys, "argv", ["experiment_job", str(path)])
    with pytest.raises(SystemExit) as end:
        experiment_job.main()
    assert end.value.code == 2
    assert capfd.readouterr().err.splitlines()[-1] == (
        "experiment: RuntimeError: two lines (arena.py:2, in build); mend the arena"
    )
    assert not (tmp_path / "model").exists()
