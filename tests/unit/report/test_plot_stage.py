"""The plot stage as DVC runs it: a process in the project's folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import yaml

from ratchet.report import plots
from steps import plot

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def project(result: Path) -> Path:
    """The made-up result with the project's params and look, as `python -m steps.plot` finds them."""
    (result / "ratchet/report").mkdir(parents=True)
    for name in ("page.css", "page.js"):
        shutil.copy(ROOT / "ratchet/report" / name, result / "ratchet/report" / name)
    params = {"plot": {"smoothing": 0.05, "dpi": 60, "documents": 0}}
    (result / "params.yaml").write_text(yaml.safe_dump(params))
    return result


def run_stage(project: Path) -> subprocess.CompletedProcess[str]:
    """The stage as a process; the code comes from this checkout, the files from `project`."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"}
    return subprocess.run(
        [sys.executable, "-m", "steps.plot"], cwd=project, env=environment, capture_output=True, text=True, timeout=240
    )


def tree(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


@pytest.mark.slow
def test_stage_twice_gives_the_same_bytes(project: Path) -> None:
    first = run_stage(project)
    assert first.returncode == 0, first.stderr
    before = tree(project / "data/plot")
    of_loops = ("progress.png", "training_dashboard.png", "team_curves.png")
    assert list(before) == sorted([*of_loops, "report.html", *plots.FILES])
    assert run_stage(project).returncode == 0
    assert tree(project / "data/plot") == before
    assert first.stdout.startswith("plot: 1.")


def empty_history(project: Path) -> None:
    path = project / "data/train/history.tsv"
    path.write_text(path.read_text().splitlines()[0] + "\n")


def torn_history(project: Path) -> None:
    path = project / "data/train/history.tsv"
    path.write_bytes(path.read_bytes()[:-3])


def no_history(project: Path) -> None:
    (project / "data/train/history.tsv").unlink()


def history_of_another_run(project: Path) -> None:
    path = project / "data/train/history.tsv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-5]))


def timing_of_another_run(project: Path) -> None:
    path = project / "data/train/timing/steps.tsv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-5]))


def documents_of_another_model(project: Path) -> None:
    path = project / "data/evaluate/documents.parquet"
    table = pd.read_parquet(path)
    table.assign(nats=table["nats"] * 1.01).to_parquet(path)


def texts_of_another_split(project: Path) -> None:
    folder = project / "data/prepare/val"
    shutil.rmtree(folder)
    folder.mkdir()
    shutil.copy(project / "data/evaluate/documents.parquet", folder / "shard-00000.parquet")


def unknown_isolation(project: Path) -> None:
    path = project / "metrics/evaluate.json"
    path.write_text(path.read_text().replace('"weak"', '"none"'))


BAD_INPUTS: list[tuple[Callable[[Path], None], str]] = [
    (empty_history, "holds only a header: the run died before its first step; read its log: runs/train/"),
    (torn_history, "is torn, its end is missing"),
    (no_history, "input data/train/history.tsv does not exist; run the stage that makes it: `dvc repro`"),
    (history_of_another_run, "ends at step 115, metrics/train.json says 120 steps"),
    (timing_of_another_run, "ends at step 115, the history at 120"),
    (documents_of_another_model, "its nats sum to 1."),
    (texts_of_another_split, "no column 'text'"),
    (unknown_isolation, "key isolation: 'none' (must be one of weak, container)"),
]


@pytest.mark.parametrize(("spoil", "said"), BAD_INPUTS, ids=[spoil.__name__ for spoil, _ in BAD_INPUTS])
def test_stage_bad_input_is_one_line_exit_2_and_leaves_the_old_output(
    project: Path,
    spoil: Callable[[Path], None],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(project)
    (project / "data/plot").mkdir()
    (project / "data/plot/report.html").write_text("the last good one")
    spoil(project)
    with pytest.raises(SystemExit) as ended:
        plot.STAGE.main()
    told = capsys.readouterr().err
    assert ended.value.code == 2, told
    assert said in told
    assert len(told.splitlines()) == 1
    assert [path.name for path in (project / "data/plot").iterdir()] == ["report.html"]
    assert (project / "data/plot/report.html").read_text() == "the last good one"
    assert not list((project / "data").glob(".*"))


def test_stage_inputs_and_outputs_exist_in_a_made_up_result(project: Path) -> None:
    assert not [path for path in plot.STAGE.inputs if not (project / path).exists()]
