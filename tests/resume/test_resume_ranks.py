"""A training that two processes share: the curve of one process, and after any end of any of them the same bytes.

Most ranks are forked children of this process, which have torch imported; one test starts them as a user does.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest

from ratchet.core.errors import InputError
from ratchet.core.rundir import list_runs
from ratchet.train.launch import train_and_publish, train_as_rank
from ratchet.train.progress import Watch
from ratchet.train.rank_launch import culprit
from ratchet.train.ranks import Together
from ratchet.train.trainer import Training
from toy_training import edit_arena, forked, launch, make_project, published, request, results, usual

RANKS = 2
SLOW = """
import os as _os
import time as _time

_slow_step = Experiment.step


def _slowly(self, batches, progress):
    _time.sleep(float(_os.environ.get("SLOW_S", "0")))
    return _slow_step(self, batches, progress)


Experiment.step = _slowly
"""
"""Steps that last as long as the environment says."""

REDUCES = """
_make = Experiment.__init__


def _reducing(self, spec):
    _make(self, spec)
    self.reduce = lambda gradients: {}


Experiment.__init__ = _reducing
"""
FORGETS, HALF = REDUCES.format("None"), REDUCES.format("spec.reduce(gradients[1:])")
NOT_A_NUMBER = """
_step = Experiment.step


def _fails(self, batches, progress):
    return _step(self, batches, progress) * (float("nan") if progress >= 0.5 else 1.0)


Experiment.step = _fails
"""
RAISES = """
import os as _os

_make = Experiment.__init__


def _raises(self, spec):
    _make(self, spec)
    if _os.environ.get("RANK") == "1":
        raise ValueError("this rank alone fails")


Experiment.__init__ = _raises
"""
LAZY = """
_whole = Experiment.state_dict


def _so_far(self):
    begun = int(self.optimizer.steps) > 0
    return {name: value for name, value in _whole(self).items() if begun or name.startswith("model.")}


def _take(self, state):
    for name, value in state.items():
        _whole(self)[name].copy_(value)


Experiment.state_dict, Experiment.load_state_dict = _so_far, _take
"""
"""An optimizer that has no state before its first step, as those of torch."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    return edit_arena(make_project(folder / "plain"), folder / "project", SLOW)


@pytest.fixture(scope="module")
def unbroken(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that two ranks shared and nothing disturbed."""
    where = tmp_path_factory.mktemp("unbroken")
    assert together(project, where) == [0, 0]
    return where


def together(
    project: Path, where: Path, *, ranks: int = RANKS, meanwhile: Callable[[int], object] = bool, **train: Any
) -> list[int]:
    """Train in `ranks` forked processes; their exit codes. `meanwhile(rank)` prepares each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        there = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}

    def rank(number: int) -> None:
        os.environ.update(there, RANK=str(number), LOCAL_RANK=str(number))
        meanwhile(number)
        train_as_rank(request(project, **train), published(where), usual(where), Together())

    where.mkdir(exist_ok=True)
    children = [forked(partial(rank, number)) for number in range(ranks)]
    return [ended(child) for child in children]


def ended(child: int) -> int:
    """The exit code of a child of this process, or minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def curve(where: Path, column: str) -> list[float]:
    return pd.read_csv(where / "history.tsv", sep="\t")[column].tolist()


def launcher(project: Path, where: Path) -> int:
    """The pid of a process that trains as a user does, who has set two ranks."""
    return forked(lambda: train_and_publish(request(project), published(where), usual(where, ranks=RANKS)))


def steps_after(where: Path, steps: int) -> int:
    """The steps of the run's next checkpoint after `steps`, once it is there; it is not its last."""
    until = time.monotonic() + 150
    while steps >= (now := max((info.steps for info in list_runs(where / "runs")), default=0)):
        assert time.monotonic() < until, "no checkpoint came"
        time.sleep(0.05)
    assert now < 10, "too late to disturb it"
    return now


def dies_at(step: int, of: int) -> Callable[[int], None]:
    """Rank `of` is killed by SIGKILL in its step `step`, before its next word to the others."""

    def prepare(rank: int) -> None:
        def die(self: Watch, row: Any, step_seconds: float) -> None:
            if row["step"] == step and rank == of:
                os.kill(os.getpid(), signal.SIGKILL)

        Watch.step = die

    return prepare


def test_ranks_two_have_the_curve_of_one_process(project: Path, unbroken: Path, tmp_path: Path) -> None:
    launch(project, tmp_path)
    alone, shared = curve(tmp_path, "loss"), curve(unbroken, "loss")
    assert alone != shared, "nothing was summed in another order: was it shared at all?"
    assert shared == pytest.approx(alone, rel=1e-5)
    norms = curve(tmp_path, "grad_norm")
    assert curve(unbroken, "grad_norm") == pytest.approx(norms, rel=1e-4), "which no optimizer sees the scale of"


@pytest.mark.parametrize("killed", [0, 1])
def test_ranks_one_killed_ends_all_and_the_next_start_ends_in_the_same_bytes(
    project: Path, unbroken: Path, tmp_path: Path, killed: int
) -> None:
    codes = together(project, tmp_path, meanwhile=dies_at(5, killed))
    assert codes[killed] == -signal.SIGKILL
    assert codes[1 - killed] == 3, "the other cannot reach it, which is no fault of the input"
    assert [info.steps for info in list_runs(tmp_path / "runs")] == [4], "the checkpoint before the kill"
    assert together(project, tmp_path) == [0, 0]
    assert results(tmp_path) == results(unbroken)


def test_ranks_a_signal_to_one_ends_all_after_the_step_saved(project: Path, unbroken: Path, tmp_path: Path) -> None:
    def prepare(rank: int) -> None:
        def ask(self: Watch, row: Any, step_seconds: float) -> None:
            if row["step"] == 5 and rank == 1:
                os.kill(os.getpid(), signal.SIGTERM)

        Watch.step = ask

    assert together(project, tmp_path, meanwhile=prepare) == [143, 0]
    (run,) = list_runs(tmp_path / "runs")
    assert (run.state, run.steps) == ("stopped", 5)
    assert together(project, tmp_path) == [0, 0]
    assert results(tmp_path) == results(unbroken)


def test_ranks_a_loss_that_is_no_number_ends_all_at_the_same_step(project: Path, tmp_path: Path) -> None:
    broken = edit_arena(project, tmp_path / "broken", NOT_A_NUMBER)
    assert together(broken, tmp_path / "out") == [2, 2]
    (run,) = list_runs(tmp_path / "out/runs")
    assert run.why.startswith("diverged at step 6: loss is nan")


@pytest.mark.parametrize(
    ("edit", "said"), [(FORGETS, "step() has not called spec.reduce"), (HALF, "differs from rank to rank")]
)
def test_ranks_an_arena_that_does_not_reduce_its_gradients_is_refused(
    project: Path, tmp_path: Path, edit: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert 2 in together(edit_arena(project, tmp_path / "arena", edit), tmp_path / "out")
    assert said in capfd.readouterr().err
    assert [info.steps for info in list_runs(tmp_path / "out/runs")] == [0], "nothing of it was committed"


def test_ranks_that_cannot_share_the_rows_evenly_are_refused(
    project: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert 2 in together(project, tmp_path / "out", ranks=3)
    assert "batch_rows = 4 cannot be shared evenly by 3 ranks" in capfd.readouterr().err


def test_ranks_another_number_may_not_go_on_with_a_run(project: Path, unbroken: Path, tmp_path: Path) -> None:
    (run,) = list_runs(unbroken / "runs")
    with pytest.raises(InputError, match=r"device\.ranks 2 → '\(absent\)'.*--allow-inexact"):
        launch(project, tmp_path, settings={"resume_run": run.path})


def test_ranks_by_a_setting_one_killed_is_told_in_one_line_the_same_command_goes_on_and_a_signal_ends_it_saved(
    project: Path, unbroken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLOW_S", "0.3")
    asked = launcher(project, tmp_path)
    before = steps_after(tmp_path, 0)
    second_rank(asked).kill()
    assert ended(asked) == 3
    told = "train: rank 1 ended with signal SIGKILL; run again: it goes on from the last checkpoint"
    assert capfd.readouterr().err.splitlines()[-1] == told
    asked = launcher(project, tmp_path)
    steps_after(tmp_path, before)
    os.kill(asked, signal.SIGTERM)
    assert ended(asked) == 143
    assert "train: continues" in capfd.readouterr().err
    assert [info.state for info in list_runs(tmp_path / "runs")] == ["stopped"]
    monkeypatch.setenv("SLOW_S", "0")
    assert together(project, tmp_path) == [0, 0]
    assert results(tmp_path) == results(unbroken)


def test_ranks_by_a_setting_the_last_words_of_another_than_the_first_are_shown(
    project: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = edit_arena(project, tmp_path / "broken", RAISES)
    assert ended(launcher(broken, tmp_path / "out")) == 2
    assert "this rank alone fails" in capfd.readouterr().err.splitlines()[-1]


def test_ranks_whose_launcher_is_killed_end_after_the_step_saved(project: Path, unbroken: Path, tmp_path: Path) -> None:
    def prepare(rank: int) -> None:
        parent = os.getppid()

        def orphan(self: Watch, row: Any, step_seconds: float) -> None:
            if row["step"] == 5 and rank == 1:
                os.kill(parent, signal.SIGKILL)
                while os.getppid() == parent:
                    time.sleep(0.01)

        Watch.step = orphan

    assert ended(forked(lambda: together(project, tmp_path, meanwhile=prepare))) == -signal.SIGKILL
    until = time.monotonic() + 150
    while list_runs(tmp_path / "runs")[0].state != "stopped":
        assert time.monotonic() < until, "the ranks go on without it"
        time.sleep(0.05)
    assert [info.steps for info in list_runs(tmp_path / "runs")] == [5]
    assert together(project, tmp_path) == [0, 0]
    assert results(tmp_path) == results(unbroken)


def test_ranks_with_a_horizon_in_seconds_take_the_steps_that_the_first_has_time_for(
    project: Path, tmp_path: Path
) -> None:
    def prepare(rank: int) -> None:
        Training._rehearse = lambda self, steps: [(0.125, 0.5)[rank]] * steps

    assert together(project, tmp_path, meanwhile=prepare, horizon={"unit": "seconds", "value": 1.0}) == [0, 0]
    (run,) = list_runs(tmp_path / "runs")
    assert run.state == "finished"
    assert len(curve(tmp_path, "loss")) == run.steps == 8


def test_ranks_take_over_an_optimizer_state_that_they_have_not_built_yet(project: Path, tmp_path: Path) -> None:
    lazy = edit_arena(project, tmp_path / "lazy", LAZY)
    for where, stops in (("unbroken", [None]), ("stopped", [5, None])):
        for stop in stops:
            assert together(lazy, tmp_path / where, stop_at=stop) == [0, 0]
    assert results(tmp_path / "stopped") == results(tmp_path / "unbroken")


@pytest.mark.parametrize(
    ("failed", "rank"),
    [({0: 2, 1: 2}, 0), ({0: 3, 1: -9}, 1), ({0: 3, 1: 2}, 1), ({0: 2, 1: -15}, 0), ({0: -9, 1: 3}, 0), ({0: 3}, 0)],
)
def test_ranks_culprit_is_who_failed_for_a_reason_of_its_own(failed: dict[int, int], rank: int) -> None:
    assert culprit(failed) == rank


def second_rank(launcher: int) -> psutil.Process:
    for process in psutil.Process(launcher).children(recursive=True):
        with suppress(psutil.Error):
            if process.environ().get("RANK") == "1":
                return process
    raise AssertionError("no rank 1 runs")
