"""The sealed trainer at the edges: divergence, stop steps, calibration, identity, what it shows and publishes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ratchet.core.checkpoint import read_metadata
from ratchet.core.rundir import list_runs
from ratchet.tables import history, metrics, timing
from ratchet.train import progress
from ratchet.train.clock import Clock
from toy_training import edit_arena, in_child, launch, make_project, results


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_project(tmp_path_factory.mktemp("toy") / "project")


@pytest.fixture
def edited(project: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A copy of the project whose arena has more code at its end."""
    return lambda code: edit_arena(project, tmp_path / "edited", code)


def trained(project: Path, where: Path, **train: Any) -> dict[str, str]:
    assert in_child(lambda: launch(project, where, **train)) == 0
    return results(where)


def runs(where: Path) -> list[Path]:
    return sorted((where / "runs/train").glob("*/"))


def newest_state(where: Path) -> dict[str, Any]:
    return read_metadata(max(where.glob("runs/train/*/checkpoints/*")))["state"]


FAILING_AT_7 = """
_step = Experiment.step


def _failing(self, batches, progress):
    loss = _step(self, batches, progress)
    return loss * {factor} if int(self.optimizer.steps) == {step} else loss


Experiment.step = _failing
"""


@pytest.mark.parametrize(
    ("factor", "step", "said"),
    [('float("nan")', 7, "loss is nan"), ("1000.0", 17, "is over 4 times the median of the last 16 steps")],
)
def test_train_diverging_stops_with_the_step_named_and_keeps_the_last_good_checkpoint(
    edited: Callable[[str], Path], tmp_path: Path, capfd: Any, factor: str, step: int, said: str
) -> None:
    project = edited(FAILING_AT_7.format(factor=factor, step=step))
    where = tmp_path / "out"
    horizon = {"unit": "steps", "value": 20}
    assert in_child(lambda: launch(project, where, horizon=horizon)) == 2
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith(f"train, step {step}: the training has diverged: ")
    assert said in error
    assert newest_state(where)["step"] == step - 1
    assert not (where / "model").exists()
    (run,) = list_runs(where / "runs")
    assert run.state == "stopped"
    assert run.why.startswith(f"diverged at step {step}: ")


def test_train_compiled_where_torch_cannot_is_refused_before_a_run_is_made(
    project: Path, tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ratchet.train.device.sysconfig.get_path", lambda _: "/my project/include")
    assert in_child(lambda: launch(project, tmp_path, compile=True)) == 2
    (error,) = capfd.readouterr().err.splitlines()
    assert error.startswith("train.compile: true, but torch cannot compile with the headers in '/my project/include'")
    assert not (tmp_path / "runs").exists()


def test_train_stop_beyond_the_horizon_is_refused(project: Path, tmp_path: Path, capfd: Any) -> None:
    assert in_child(lambda: launch(project, tmp_path, stop_at=11)) == 2
    assert "train.stop_at = 11 is beyond the horizon of 10 steps" in capfd.readouterr().err


def test_train_stop_before_the_run_is_refused(project: Path, tmp_path: Path, capfd: Any) -> None:
    trained(project, tmp_path)
    assert in_child(lambda: launch(project, tmp_path, stop_at=5)) == 2
    assert "is at step 10, beyond train.stop_at = 5" in capfd.readouterr().err
    (run,) = list_runs(tmp_path / "runs")
    assert (run.state, run.why) == ("finished", "step 10 of 10")


def test_train_constant_schedule_may_go_beyond_its_horizon(edited: Callable[[str], Path], tmp_path: Path) -> None:
    project = edited(
        "_step = Experiment.step\n"
        "Experiment.step = lambda self, batches, progress: _step(self, batches, 0.0)\n"
        "Experiment.constant_schedule = True"
    )
    half = {"horizon": {"unit": "steps", "value": 5}}
    trained(project, tmp_path / "twice", **half)
    longer = trained(project, tmp_path / "twice", **half, stop_at=10)
    once = trained(project, tmp_path / "once")
    assert longer["model.safetensors"] == once["model.safetensors"]
    assert longer["history.tsv"] == once["history.tsv"]
    assert len(runs(tmp_path / "twice")) == 1


FORGETFUL = """
_load = Experiment.load_state_dict


def _forget(self, state):
    kept = {name: value.clone() for name, value in self.state_dict().items() if "momentum" in name}
    _load(self, state)
    if int(self.optimizer.steps) == 0:
        _load(self, {**self.state_dict(), **kept})


Experiment.load_state_dict = _forget
"""


def test_train_calibration_leaves_no_trace_even_in_an_arena_that_cannot_go_back(
    edited: Callable[[str], Path], tmp_path: Path
) -> None:
    """Its warm-up must be invisible: the same bytes as the run that was told the step count."""
    project = edited(FORGETFUL)
    calibrated = trained(project, tmp_path / "a", horizon={"unit": "seconds", "value": 0.5})
    steps = newest_state(tmp_path / "a")["horizon_steps"]
    pinned = trained(project, tmp_path / "b", horizon={"unit": "steps", "value": steps})
    del calibrated["checkpoint random.json"], pinned["checkpoint random.json"]
    assert calibrated == pinned


def test_train_start_up_over_its_limit_is_refused(project: Path, tmp_path: Path, capfd: Any) -> None:
    horizon = {"unit": "seconds", "value": 10.0}
    assert in_child(lambda: launch(project, tmp_path, horizon=horizon, startup_limit_s=0.001)) == 2
    assert "start-up ran into train.startup_limit_s = 0.001 s after 1 of 13 warm-up steps" in capfd.readouterr().err


def test_train_portable_changes_continue_the_run_and_others_start_fresh(
    project: Path, edited: Callable[[str], Path], tmp_path: Path, capfd: Any
) -> None:
    where = tmp_path / "out"
    trained(project, where, stop_at=5)
    trained(project, where, stop_at=7, explode_ratio=9.0, checkpoint={"every_steps": 3})
    trained(edited("# a comment changes nothing"), where)
    assert len(runs(where)) == 1
    trained(project, where, seed=2)
    assert len(runs(where)) == 2
    assert "params.seed 1 → 2" in capfd.readouterr().err
    trained(project, where, knobs={"MATRIX_LR": 0.03})
    assert len(runs(where)) == 3


def test_train_publishes_tables_that_keep_their_schemas(project: Path, tmp_path: Path) -> None:
    trained(project, tmp_path)
    table = history.read(tmp_path / "history.tsv")
    assert list(table["step"]) == list(range(1, 11))
    assert list(table["tokens"]) == [64 * step for step in range(1, 11)]
    assert table["epoch"].iloc[8] == 1.0
    metrics.validate("train", json.loads((tmp_path / "metrics.json").read_text()))
    timing.read_steps(tmp_path / "timing/steps.tsv")
    timing.read_summary(tmp_path / "timing/summary.json")
    assert sorted(item.name for item in (tmp_path / "model").iterdir()) == [
        "arena.py",
        "model.safetensors",
        "spec.json",
    ]
    assert "DEPTH: Annotated[int, 1, 24] = 1" in (tmp_path / "model/arena.py").read_text()


def test_train_keeps_the_best_checkpoints_by_the_median_of_recent_losses_when_asked(
    edited: Callable[[str], Path], tmp_path: Path
) -> None:
    """A loss that only rises: the first of the five checkpoints stays the best."""
    rising = "_step = Experiment.step\nExperiment.step = lambda self, *a: _step(self, *a) * 0 + self.optimizer.steps"
    where = tmp_path / "out"
    project = edited(rising)
    trained(project, where, checkpoint={"keep_last": 1, "keep_best": 1})
    kept = {read_metadata(path)["state"]["step"]: path for path in where.glob("runs/train/*/checkpoints/*")}
    assert sorted(kept) == [2, 10]
    assert read_metadata(kept[2])["score"] == 1.5
    trained(project, tmp_path / "usual", checkpoint={"keep_last": 1})
    assert len(list((tmp_path / "usual").glob("runs/train/*/checkpoints/*"))) == 1


def test_train_timing_sums_over_the_processes_that_worked_on_it(project: Path, tmp_path: Path) -> None:
    trained(project, tmp_path, stop_at=5)
    first = timing.read_summary(tmp_path / "timing/summary.json")
    trained(project, tmp_path)
    both = timing.read_summary(tmp_path / "timing/summary.json")
    for name in ("training_seconds", "total_seconds", "startup_seconds", "checkpoint_seconds"):
        assert both[name] > first[name], name
    steps = timing.read_steps(tmp_path / "timing/steps.tsv")
    assert steps["seconds"].is_monotonic_increasing


def test_train_shows_its_progress_to_other_processes_while_it_runs(project: Path, tmp_path: Path) -> None:
    def body() -> None:
        plain = progress.Watch.step

        def stepping(self: progress.Watch, row: Any, seconds: float) -> None:
            plain(self, row, seconds)
            if row["step"] == 1:
                (tmp_path / "seen.json").write_text(json.dumps(progress.read_live(self._folder)))

        progress.Watch.step = stepping
        launch(project, tmp_path)

    assert in_child(body) == 0
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert (seen["step"], seen["stop_step"]) == (1, 10)
    assert {"loss", "tokens_per_s", "seconds_left", "pid", "at"} <= seen.keys()
    assert progress.read_live(runs(tmp_path)[0]) is None
    assert "step 10/10  loss " in (runs(tmp_path)[0] / "train.log").read_text()


def test_clock_stretches_the_interval_so_that_saving_stays_under_two_percent() -> None:
    clock = Clock()
    assert clock.interval(60.0) == 60.0
    clock.commit_begins()
    clock._committing -= 3.0  # type: ignore[operator]  (as if the commit had taken 3 s)
    clock.commit_ended()
    assert 150.0 <= clock.interval(60.0) < 151.0
    assert 3.0 <= clock.checkpoint_seconds < 3.1
