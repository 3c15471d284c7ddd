"""An interrupted training ends in the bytes of one that was not: weights, optimizer, generators, history, metrics.

Trainings run in forked children, so that a kill is a real SIGKILL and costs no import of torch.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

from ratchet.core.checkpoint import read_metadata
from ratchet.core.fingerprint import tree_digest
from ratchet.core.rundir import list_runs, read_identity
from ratchet.data.packing import PackedSplit
from ratchet.data.tokenizer import Tokenizer
from ratchet.sandbox.process import ProcessSandbox
from ratchet.settings import child_environment
from ratchet.stage import guarded
from ratchet.train import device, progress, training_state
from ratchet.train.judge import judge
from ratchet.train.wandb_files import history_steps
from toy_training import edit_arena, in_child, launch, make_project, results


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_project(tmp_path_factory.mktemp("toy") / "projekt mit Ä")


class Bomb:
    """Kills the process at the `fuse`-th dangerous instant; without a fuse it only counts them in a file.

    Instants: before an fsync, before and after a rename, half way through a tensor file, after an optimizer step.
    """

    def __init__(self, fuse: int | None, count_file: Path) -> None:
        self.fuse, self.count, self.count_file = fuse, 0, count_file

    def tick(self) -> None:
        if self.count == self.fuse:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1
        if self.fuse is None:
            self.count_file.write_text(str(self.count))

    def arm(self) -> None:
        """Patch this process for good: it is a child that ends soon."""
        self._around(os, "fsync", after=False)
        self._around(Path, "replace", after=True)
        self._around(progress.Watch, "step", after=False)
        progress.WRITE_SECONDS = (
            1e9  # the live file is written by the clock: its renames would be other instants each time
        )
        save = training_state.save_file

        def save_half(tensors: Any, path: Path) -> None:
            save(tensors, path)
            if self.count == self.fuse:
                os.truncate(path, path.stat().st_size // 2)
            self.tick()

        training_state.save_file = save_half

    def _around(self, owner: Any, name: str, *, after: bool) -> None:
        plain = getattr(owner, name)

        def ticking(*arguments: Any, **keywords: Any) -> Any:
            self.tick()
            result = plain(*arguments, **keywords)
            if after:
                self.tick()
            return result

        setattr(owner, name, ticking)


def killed_at(fuse: int | None, project: Path, where: Path, **train: Any) -> int:
    """Train in a child that dies at `fuse`; its exit code. With `fuse` None: run through and count the instants."""
    bomb = Bomb(fuse, where.with_suffix(".count"))

    def body() -> None:
        bomb.arm()
        launch(project, where, **train)

    return in_child(body)


def trained(project: Path, where: Path, **train: Any) -> dict[str, str]:
    """The results of a training that runs to its stop in a child."""
    assert in_child(lambda: launch(project, where, **train)) == 0
    return results(where)


@pytest.fixture(scope="module")
def unbroken(project: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return trained(project, tmp_path_factory.mktemp("unbroken"))


def instants(project: Path, where: Path, **train: Any) -> int:
    assert killed_at(None, project, where, **train) == 0
    return int(where.with_suffix(".count").read_text())


def check_kills(points: range, project: Path, folder: Path, expected: dict[str, str], **train: Any) -> None:
    """Kill at each of `points`, resume, compare."""
    for point in points:
        where = folder / str(point)
        assert killed_at(point, project, where, **train) == -signal.SIGKILL, f"instant {point} was not reached"
        assert trained(project, where, **train) == expected, f"killed at instant {point}"


def test_train_stopped_and_continued_equals_never_stopped(
    project: Path, tmp_path: Path, unbroken: dict[str, str]
) -> None:
    trained(project, tmp_path, stop_at=5)
    assert trained(project, tmp_path) == unbroken


@pytest.mark.parametrize("stop", [1, 9])
def test_train_stopped_beside_an_epoch_boundary_equals_never_stopped(
    project: Path, tmp_path: Path, unbroken: dict[str, str], stop: int
) -> None:
    """The toy has 36 rows and takes 4 a step: step 9 ends the first epoch exactly."""
    trained(project, tmp_path, stop_at=stop)
    assert trained(project, tmp_path) == unbroken


def test_train_killed_at_some_instants_equals_never_killed(
    project: Path, tmp_path: Path, unbroken: dict[str, str]
) -> None:
    count = instants(project, tmp_path / "counted")
    assert count > 7, "nothing would be killed"
    check_kills(range(7, count, count // 3), project, tmp_path, unbroken)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_train_killed_at_every_instant_equals_never_killed(
    project: Path, tmp_path: Path, unbroken: dict[str, str]
) -> None:
    often = {"checkpoint": {"every_steps": 5}}
    count = instants(project, tmp_path / "counted", **often)
    assert count >= 70
    check_kills(range(count), project, tmp_path, unbroken, **often)


@pytest.mark.slow
def test_train_with_accumulation_killed_anywhere_equals_never_killed(project: Path, tmp_path: Path) -> None:
    """Five batches of 4 rows a step over 36 rows: steps straddle epochs."""
    knobs = {"ACCUMULATION": 5}
    expected = trained(project, tmp_path / "unbroken", knobs=knobs)
    count = instants(project, tmp_path / "counted", knobs=knobs)
    assert count > 19, "nothing but the start would be killed"
    check_kills(range(0, count, 19), project, tmp_path, expected, knobs=knobs)


def test_train_checkpointed_at_other_steps_gives_the_same_results(
    project: Path, tmp_path: Path, unbroken: dict[str, str]
) -> None:
    assert trained(project, tmp_path, checkpoint={"every_steps": 3}) == unbroken


def test_train_finished_is_published_again_without_a_step(
    project: Path, tmp_path: Path, unbroken: dict[str, str]
) -> None:
    trained(project, tmp_path)
    steps = killed_at(None, project, tmp_path)
    assert steps == 0
    assert results(tmp_path) == unbroken
    assert len(list((tmp_path / "runs" / "train").glob("*/"))) == 1


NOISY = """
import random

import numpy

_step = Experiment.step


def _noisy(self, batches, progress):
    loss = _step(self, batches, progress)
    with torch.no_grad():
        self.model.head.add_(torch.randn_like(self.model.head), alpha=1e-3 * random.gauss(1, 1) * numpy.random.rand())
    return loss


Experiment.step = _noisy
"""


@pytest.mark.parametrize("step", [3, 6])
def test_train_that_draws_random_numbers_continues_each_generator_where_it_was(
    project: Path, tmp_path: Path, step: int
) -> None:
    """Python's (with a normal held back), NumPy's and torch's, killed between two commits and right before one."""
    noisy = edit_arena(project, tmp_path / "noisy", NOISY)

    def body() -> None:
        _after_step(step, lambda: os.kill(os.getpid(), signal.SIGKILL))
        launch(noisy, tmp_path / "killed")

    assert in_child(body) == -signal.SIGKILL
    assert trained(noisy, tmp_path / "killed") == trained(noisy, tmp_path / "unbroken")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_train_signalled_saves_its_step_and_exits_by_convention(
    project: Path, tmp_path: Path, unbroken: dict[str, str], number: signal.Signals, code: int, capfd: Any
) -> None:
    """Between two checkpoints: step 3, with commits at even steps."""

    def body() -> None:
        _after_step(3, lambda: os.kill(os.getpid(), number))
        launch(project, tmp_path)

    assert in_child(body) == code
    assert not (tmp_path / "model").exists()
    said = capfd.readouterr().err
    assert f"stopped by {number.name} after step 3 of 10" in said
    assert "ratchet resume" in said
    checkpoint = max(tmp_path.glob("runs/train/*/checkpoints/*"))
    assert read_metadata(checkpoint)["state"]["step"] == 3
    assert trained(project, tmp_path) == unbroken


def test_train_stop_file_ends_it_like_a_signal(
    project: Path, tmp_path: Path, unbroken: dict[str, str], capfd: Any
) -> None:
    def ask() -> None:
        (next((tmp_path / "runs" / "train").iterdir()) / "stop").touch()

    def body() -> None:
        _after_step(3, ask)
        launch(project, tmp_path)

    assert in_child(body) == 143
    assert "train: stopped by `ratchet stop` after step 3 of 10, which is saved in" in capfd.readouterr().err
    assert not (tmp_path / "model").exists()
    assert trained(project, tmp_path) == unbroken


def test_train_on_a_full_disk_ends_in_one_line_and_continues_when_there_is_room(
    project: Path, tmp_path: Path, unbroken: dict[str, str], capfd: Any
) -> None:
    """The third checkpoint finds no room, as safetensors says it."""

    def body() -> None:
        save, calls = training_state.save_file, itertools.count()

        def save_some(tensors: Any, path: Path) -> None:
            if next(calls) >= 5:
                raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
            save(tensors, path)

        training_state.save_file = save_some
        sys.exit(guarded("train", lambda: launch(project, tmp_path)))

    assert in_child(body) == 2
    assert "train: the disk is full while writing" in capfd.readouterr().err.splitlines()[-1]
    assert not [item for item in tmp_path.rglob("*") if ".ratchet-tmp-" in item.name]
    assert read_metadata(max(tmp_path.glob("runs/train/*/checkpoints/*")))["state"]["step"] == 4
    assert trained(project, tmp_path) == unbroken


def test_train_damaged_newest_checkpoint_is_refused_and_auto_takes_the_one_before(
    project: Path, tmp_path: Path, unbroken: dict[str, str], capfd: Any
) -> None:
    trained(project, tmp_path, stop_at=6)
    blob = max(tmp_path.glob("runs/train/*/checkpoints/*")) / "optimizer.safetensors"
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    assert in_child(lambda: launch(project, tmp_path)) == 2
    assert str(blob) in capfd.readouterr().err
    assert in_child(lambda: launch(project, tmp_path, settings={"resume": "auto"})) == 0
    assert "at step 4 of 10" in capfd.readouterr().err
    assert results(tmp_path) == unbroken


def test_train_explicit_resume_refuses_changes_unless_the_code_is_adopted(
    project: Path, tmp_path: Path, capfd: Any
) -> None:
    trained(project, tmp_path, stop_at=6)
    run = next(tmp_path.glob("runs/train/*/identity.json")).parent
    assert in_child(lambda: launch(project, tmp_path, settings={"resume_run": run}, seed=2)) == 2
    assert "params.seed 1 → 2" in capfd.readouterr().err
    edited = edit_arena(project, tmp_path / "edited", "ADAM_BETAS = (0.9, 0.95)")
    assert in_child(lambda: launch(edited, tmp_path, settings={"resume_run": run})) == 2
    assert "--adopt-code" in capfd.readouterr().err
    assert in_child(lambda: launch(edited, tmp_path, settings={"resume_run": run, "adopt_code": True})) == 0
    assert "continues" in capfd.readouterr().err
    assert (tmp_path / "metrics.json").exists()


def test_train_adopted_arena_that_does_not_fit_leaves_the_run_to_its_old_code(
    project: Path, tmp_path: Path, unbroken: dict[str, str], capfd: Any
) -> None:
    trained(project, tmp_path, stop_at=6)
    (run,) = list_runs(tmp_path / "runs")
    unfit = edit_arena(project, tmp_path / "unfit", UNFIT)
    assert in_child(lambda: launch(unfit, tmp_path, settings={"resume_run": run.path, "adopt_code": True})) == 2
    assert "does not fit the arena" in capfd.readouterr().err
    assert list_runs(tmp_path / "runs")[0]._replace(age_s=run.age_s) == run
    assert in_child(lambda: launch(project, tmp_path, settings={"resume_run": run.path})) == 0
    assert results(tmp_path) == unbroken


def test_train_adopting_code_with_nothing_left_to_train_publishes_nothing(
    project: Path, tmp_path: Path, capfd: Any
) -> None:
    trained(project, tmp_path, stop_at=6)
    before = results(tmp_path)
    (run,) = list_runs(tmp_path / "runs")
    edited = edit_arena(project, tmp_path / "edited", "ADAM_BETAS = (0.9, 0.95)")
    adopting = {"resume_run": run.path, "adopt_code": True}
    assert in_child(lambda: launch(edited, tmp_path, settings=adopting, stop_at=6)) == 2
    assert "nothing is left to train under the changed code.arena" in capfd.readouterr().err
    assert results(tmp_path) == before
    assert list_runs(tmp_path / "runs")[0]._replace(age_s=run.age_s) == run


UNFIT = """
_load = Experiment.load_state_dict
Experiment.load_state_dict = lambda self, state: _load(self, {k: v for k, v in state.items() if "head" not in k})
"""


def test_train_portable_changes_continue_the_same_run_to_the_same_bytes(
    project: Path, tmp_path: Path, unbroken: dict[str, str]
) -> None:
    """Where it pauses, when it saves and gives up, how much it says, and to whom; the device index: test_device.py."""
    trained(project, tmp_path, stop_at=3, checkpoint={"every_steps": 1, "keep_last": 1, "keep_best": 1})
    trained(project, tmp_path, stop_at=6, explode_ratio=9.0, startup_limit_s=50.0, settings={"log_interval": 2})
    settings = {"wandb": "offline", "wandb_project": "another", "log_interval": 1}
    assert trained(project, tmp_path, settings=settings, checkpoint={"every_seconds": 0.001}) == unbroken
    (run,) = list_runs(tmp_path / "runs")
    assert (run.state, run.steps) == ("finished", 10)
    (file,) = run.path.glob("wandb/offline-run-*/*.wandb")
    assert list(history_steps(file)) == list(range(1, 11))


def test_train_on_other_threads_needs_allow_inexact_and_is_marked(
    project: Path, tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "available_cpus", lambda: 2)
    trained(project, tmp_path, stop_at=6)
    (run,) = list_runs(tmp_path / "runs")
    settings = {"resume_run": run.path, "threads": 2}
    assert in_child(lambda: launch(project, tmp_path, settings=settings)) == 2
    said = capfd.readouterr().err
    assert "changed: device.threads 1 → 2; " in said
    assert "continue with --allow-inexact" in said
    assert in_child(lambda: launch(project, tmp_path, settings=settings | {"allow_inexact": True})) == 0
    assert "at step 6 of 10" in capfd.readouterr().err
    record = read_identity(run.path)
    assert record["identity"]["device"]["threads"] == 2
    assert [(mark["key"], mark["old"], mark["new"]) for mark in record["inexact"]] == [("device.threads", 1, 2)]
    assert [info.steps for info in list_runs(tmp_path / "runs")] == [10]


EPOCH_STEPS = 9


def test_train_two_epochs_and_two_more_of_a_horizon_of_four_equal_four(project: Path, tmp_path: Path) -> None:
    four = {"horizon": {"unit": "epochs", "value": 4}}
    trained(project, tmp_path / "halves", **four, stop_at=2 * EPOCH_STEPS)
    assert json.loads((tmp_path / "halves/metrics.json").read_text())["epochs"] == 2.0
    halves = trained(project, tmp_path / "halves", **four)
    assert halves == trained(project, tmp_path / "once", **four)
    assert json.loads((tmp_path / "once/metrics.json").read_text())["epochs"] == 4.0


CONSTANT = """
_step = Experiment.step
Experiment.step = lambda self, batches, progress: _step(self, batches, 0.5)
Experiment.constant_schedule = True
"""


def test_train_constant_schedule_two_epochs_and_two_more_equal_four(project: Path, tmp_path: Path) -> None:
    constant = edit_arena(project, tmp_path / "constant", CONSTANT)
    two = {"horizon": {"unit": "epochs", "value": 2}}
    trained(constant, tmp_path / "halves", **two)
    halves = trained(constant, tmp_path / "halves", **two, stop_at=4 * EPOCH_STEPS)
    once = trained(constant, tmp_path / "once", horizon={"unit": "epochs", "value": 4})
    del halves["metrics.json"], once["metrics.json"]  # they name the horizon
    assert halves == once
    assert len(list_runs(tmp_path / "halves/runs")) == 1


@pytest.mark.slow
def test_train_killed_and_resumed_is_judged_to_the_same_val_bpb(project: Path, tmp_path: Path) -> None:
    trained(project, tmp_path / "unbroken")
    assert killed_at(50, project, tmp_path / "killed") == -signal.SIGKILL
    assert not (tmp_path / "killed/model").exists()
    trained(project, tmp_path / "killed")
    split = PackedSplit.load(project / "data/pack/val")
    token_bytes = Tokenizer.load(project / "data/tokenizer").token_bytes
    one, other = (
        judge(
            tmp_path / name / "model",
            split,
            token_bytes,
            device=device.resolve_device("cpu", 1),
            batch_rows=4,
            sandbox=ProcessSandbox(),
        )
        for name in ("unbroken", "killed")
    )
    assert one.val_bpb == other.val_bpb
    assert one.documents.equals(other.documents)


def _after_step(step: int, action: Callable[[], None]) -> None:
    """Patch this child so that `action` runs once, right after optimizer step `step`."""
    plain = progress.Watch.step

    def stepping(self: progress.Watch, row: Any, seconds: float) -> None:
        plain(self, row, seconds)
        if row["step"] == step:
            action()

    progress.Watch.step = stepping


def test_train_horizon_in_seconds_killed_after_calibration_equals_its_replay_in_steps(
    project: Path, tmp_path: Path
) -> None:
    """Calibrated once: the resumed run reads the step count, and a run pinned to it gives the same weights."""
    horizon = {"unit": "seconds", "value": 1.0}
    checkpoint, where = {"every_steps": 50}, tmp_path / "seconds"

    def body() -> None:
        _after_step(2, lambda: os.kill(os.getpid(), signal.SIGKILL))
        launch(project, where, horizon=horizon, checkpoint=checkpoint)

    assert in_child(body) == -signal.SIGKILL
    planned = read_metadata(min(where.glob("runs/train/*/checkpoints/*")))["state"]["horizon_steps"]
    resumed = trained(project, where, horizon=horizon, checkpoint=checkpoint)
    pinned = trained(project, tmp_path / "steps", horizon={"unit": "steps", "value": planned}, checkpoint=checkpoint)
    assert resumed == pinned


def run_stage(project: Path, *, kill_after_rows: int | None = None) -> None:
    """The stage as a process of its own: the compiler starts processes and threads, which a fork would break."""
    environment = child_environment(RATCHET_THREADS="1", RATCHET_WANDB="disabled", RATCHET_DEVICE="cpu")
    process = subprocess.Popen([sys.executable, "-m", "steps.train"], cwd=project, env=environment)
    while kill_after_rows is not None and process.poll() is None:
        ledgers = project.glob("runs/train/*/ledger.jsonl")
        if sum(len(ledger.read_bytes().splitlines()) for ledger in ledgers) >= kill_after_rows:
            process.kill()
        time.sleep(0.002)
    assert process.wait() == (0 if kill_after_rows is None else -signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.skipif(len(sys.prefix.split()) > 1, reason="needs a path without blanks")
@pytest.mark.timeout(900)
def test_train_compiled_and_killed_equals_compiled_and_unbroken(tmp_path: Path) -> None:
    """Three processes that compile; the second and third find the compiler's cache warm."""
    outputs = ("data/train/model", "data/train/history.tsv", "metrics/train.json")
    digests: dict[str, list[str]] = {}
    horizon, checkpoint = {"unit": "steps", "value": 300}, {"every_steps": 30}
    for name, kill_after_rows in (("unbroken", None), ("killed", 4)):
        project = make_project(tmp_path / name, compile=True, horizon=horizon, checkpoint=checkpoint)
        run_stage(project, kill_after_rows=kill_after_rows)
        if kill_after_rows:
            assert not (project / "metrics").exists()
            run_stage(project)
        assert len(list(project.glob("runs/train/*/identity.json"))) == 1
        digests[name] = [tree_digest(project / output) for output in outputs]
    assert digests["killed"] == digests["unbroken"]
