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

import psutil
import pytest

from ratchet.core.errors import InputError
from ratchet.core.rundir import list_runs
from ratchet.train.launch import train_and_publish, train_as_rank
from ratchet.train.progress import Watch
from ratchet.train.rank_launch import culprit
from ratchet.train.ranks import Together
from toy_training import edit_arena, forked, launch, make_project, published, request, results, usual

RANKS = 2
STEADY = """
import os as _os
import time as _time

_init, _slow_step = Optimizer.__init__, Experiment.step


def _steady(self, model):
    _init(self, model)
    for group in self.adamw.param_groups:
        if group["params"][0].ndim == 1:  # gradients of pure rounding, which Adam would blow up to whole steps
            group["eps"] = 1e-5


def _slowly(self, batches, progress):
    _time.sleep(float(_os.environ.get("SLOW_S", "0")))
    return _slow_step(self, batches, progress)


Optimizer.__init__, Experiment.step = _steady, _slowly
"""
"""A loss that hangs on no rounding, and steps that last as long as the environment says."""

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


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    return edit_arena(make_project(folder / "plain"), folder / "project", STEADY)


@pytest.fixture(scope="module")
def unbroken(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that two ranks shared and nothing disturbed."""
    where = tmp_path_factory.mktemp("unbroken")
    assert together(project, where) == [0, 0]
    return where


def together(project: Path, where: Path, *, ranks: int = RANKS, meanwhile: Callable[[int], object] = bool) -> list[int]:
    """Train in `ranks` forked processes; their exit codes. `meanwhile(rank)` prepares each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        there = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}

    def rank(number: int) -> None:
        os.environ.update(there, RANK=str(number), LOCAL_RANK=str(number))
        meanwhile(number)
        train_as_rank(request(project), published(where), usual(where), Together())

    where.mkdir(exist_ok=True)
    children = [forked(partial(rank, number)) for number in range(ranks)]
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def losses(where: Path) -> list[float]:
    return [float(line.split("\t")[3]) for line in (where / "history.tsv").read_text().splitlines()[1:]]


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
    alone, shared = losses(tmp_path), losses(unbroken)
    assert alone != shared, "nothing was summed in another order: was it shared at all?"
    assert shared == pytest.approx(alone, rel=1e-5)


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


def test_ranks_by_a_setting_one_killed_is_told_in_one_line_and_the_same_command_goes_on(
    project: Path, unbroken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def command() -> int:
        return forked(lambda: train_and_publish(request(project), published(tmp_path), usual(tmp_path, ranks=RANKS)))

    monkeypatch.setenv("SLOW_S", "0.3")
    launcher, until = command(), time.monotonic() + 60
    while [info.steps for info in list_runs(tmp_path / "runs")] not in ([2], [4], [6]) and time.monotonic() < until:
        time.sleep(0.05)
    second_rank(launcher).kill()
    assert os.waitstatus_to_exitcode(os.waitpid(launcher, 0)[1]) == 3
    told = "train: rank 1 ended with signal SIGKILL; run again: it goes on from the last checkpoint"
    assert capfd.readouterr().err.splitlines()[-1] == told
    monkeypatch.setenv("SLOW_S", "0")
    assert os.waitpid(command(), 0)[1] == 0
    assert "train: continues" in capfd.readouterr().err
    assert results(tmp_path) == results(unbroken)


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
