"""What people and other processes see of a session while it goes on."""

from __future__ import annotations

import dataclasses
import io
import json
import threading
from pathlib import Path

import pytest
from rich.console import Console

import made_session
from ratchet.core.errors import InputError
from ratchet.loops.research import board, events, mirror, view
from ratchet.loops.research.board import Board
from ratchet.loops.research.events import Everyone, Session
from ratchet.loops.research.records import Status, Trial
from ratchet.loops.research.view import Folder, Lines, Panel, View
from ratchet.settings import Settings
from ratchet.tables import ledgers
from ratchet.tables.findings import Found, Severity
from ratchet.train.progress import read_live
from ratchet.train.wandb_files import recorded_alerts, recorded_steps

NOISE = Found(Severity.WARNING, "the noise is larger than the improvement claimed", "0.001 of 0.006", "add seeds")


def trials(experiments: int = 6) -> list[Trial]:
    return [Trial(**{**row, "status": Status(row["status"])}) for row in made_session.rows(experiments)]


def session(folder: Path | None = None, **more) -> Session:
    told = {"tag": "made", "proposer": "search", "isolation": "weak", "experiments": 6, "folder": folder}
    return Session(**{**told, **more})


def played(listener: events.Events, folder: Path | None, experiments: int = 6) -> None:
    """A whole session, but for its end."""
    listener.began(session(folder))
    for number, trial in enumerate(trials(experiments)):
        if number:
            listener.proposing(number)
        listener.started(number, trial.description)
        listener.progressed(number, 90, 180)
        if trial.val_bpb is not None:
            listener.trained(number, 12.0)
            listener.judged(number, trial.val_bpb)
        listener.decided(number, trial)


def shown(told: Board) -> str:
    console = Console(width=140, file=io.StringIO(), record=True)
    console.print(view.panel(told))
    return console.export_text()


def test_lines_say_number_of_total_what_is_tried_verdict_and_best() -> None:
    stream = io.StringIO()
    played(View(Lines(stream)), None)
    lines = stream.getvalue().splitlines()
    made = trials()
    assert lines[0] == "iterate: session made: search proposes, isolation weak, at most 6 experiments"
    assert "iterate: experiment 3/6: training: SwiGLU in place of ReLU²" in lines
    kept = next(line for line in lines if line.startswith("iterate: experiment 3/6: keep"))
    assert f"keep {made[3].val_bpb:.6f}: the gain" in kept
    assert f"best {made[3].val_bpb:.6f}" in kept
    assert kept.endswith("left")


def test_panel_shows_number_best_attempt_rows_and_time_left() -> None:
    told = View()
    played(told, None)
    told.proposing(7)
    told.started(7, "a seventh")
    told.progressed(7, 45, 180)
    text = shown(told.board)
    best = trials()[6].val_bpb
    assert "experiment 6 of 6" in text
    assert f"best {best:.6f}" in text
    assert "training 45/180" in text
    assert "a seventh" in text
    assert "left" in text
    assert "SwiGLU in place of ReLU²" in text


def test_panel_text_of_a_proposer_is_no_markup_and_has_no_control_characters() -> None:
    told = View()
    told.began(session())
    evil = dataclasses.replace(trials()[0], description="[bold red]x[/] \x1b[2J\tevil", reason="[/] \x07 bell")
    told.decided(0, evil)
    told.started(1, "[red]\x1b]0;title\x07 y")
    text = shown(told.board)
    assert "[bold red]x[/]" in text
    assert "\x1b" not in text
    assert "\x07" not in text


def test_panel_before_the_baseline_is_drawn() -> None:
    assert "the baseline is being measured" in shown(Board())


def test_panel_on_a_terminal_starts_and_stops() -> None:
    file = io.StringIO()
    screen = Panel(Console(file=file, force_terminal=True, width=100))
    told = View(screen)
    played(told, None, 1)
    told.ended("the budget is used up")
    assert "ended: the budget is used up" in file.getvalue()


def test_view_without_a_terminal_prints_lines(capsys: pytest.CaptureFixture[str]) -> None:
    played(view.on(), None, 1)
    assert "iterate: experiment 1/6: discard" in capsys.readouterr().err


def test_board_time_left_is_the_mean_of_the_rows_so_far_within_the_caps(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(board.time, "monotonic", lambda: now[0])
    told = Board()
    told.began(session(experiments=10))
    assert told.seconds_left() is None, "nothing measured yet"
    now[0] += 100
    told.decided(0, trials()[0])
    assert told.seconds_left() == pytest.approx(1000)
    now[0] += 50
    told.decided(1, trials()[1])
    assert told.seconds_left() == pytest.approx(75 * 9)
    told.session = dataclasses.replace(session(experiments=10), seconds=200)
    assert told.seconds_left() == pytest.approx(50)


def test_board_a_resumed_session_counts_what_was_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board.time, "monotonic", lambda: 5.0)
    told = Board()
    told.began(session(trials=tuple(trials()[:4]), spent_s=400.0))
    assert told.done == 3
    assert told.seconds_left() == pytest.approx(300)
    assert told.gain == pytest.approx(trials()[0].val_bpb - trials()[3].val_bpb)


def test_folder_files_are_what_other_processes_read(tmp_path: Path) -> None:
    told = View(Folder())
    played(told, tmp_path)
    told.started(7, "a seventh")
    live = read_live(tmp_path)
    assert live is not None
    assert (live["step"], live["stop_step"]) == (6, 6)
    again = Board.of(live)
    assert again.trials == trials()
    assert again.attempts[7].description == "a seventh"
    assert shown(again).splitlines()[2:] == shown(told.board).splitlines()[2:]
    assert len(ledgers.read(tmp_path / "results.tsv").table) == 7
    told.ended("the end")
    assert read_live(tmp_path) is None
    assert (tmp_path / "iterate.log").read_text().splitlines()[-1].endswith("ended: the end")


def test_folder_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    told = View(Folder())
    played(told, tmp_path / "not there")
    assert told.board.trials == trials()
    assert list(tmp_path.iterdir()) == []


def test_everyone_drops_a_listener_that_fails_with_one_warning(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken(View):
        def decided(self, number: int, trial: Trial) -> None:
            raise InputError("view", "is broken", "mend it")

    good = View()
    played(Everyone(Broken(), good), None)
    assert len(good.board.trials) == 7
    assert capsys.readouterr().err.count("iterate: Broken: InputError: view: is broken") == 1


def test_everyone_drops_a_listener_that_fails_in_two_threads_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    both = threading.Barrier(2)

    class Broken(View):
        def progressed(self, number: int, step: int, of: int) -> None:
            both.wait(10)
            raise KeyError("step")

    everyone, failed = Everyone(Broken()), []

    def tell() -> None:
        try:
            everyone.progressed(1, 1, 2)
        except Exception as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=tell) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    everyone.progressed(1, 2, 2)
    assert "iterate: Broken: KeyError: 'step'; going on without it" in capsys.readouterr().err


def test_view_told_by_many_threads_at_once_keeps_every_row() -> None:
    told = View(Lines(io.StringIO()))
    told.began(session())
    told.decided(0, trials()[0])
    threads = [
        threading.Thread(target=lambda n=n: [told.progressed(n, at, 200) for at in range(200)]) for n in (1, 2, 3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {number: attempt.step for number, attempt in told.board.attempts.items()} == {1: 199, 2: 199, 3: 199}


def test_view_says_the_findings_before_the_end() -> None:
    stream = io.StringIO()
    told = View(Lines(stream))
    played(told, None)
    told.found([NOISE])
    told.ended("the budget is used up")
    assert stream.getvalue().splitlines()[-2:] == [
        f"iterate: ALERT: {NOISE.what}: 0.001 of 0.006; add seeds",
        "iterate: ended: the budget is used up",
    ]


def test_mirror_rows_carry_running_best_and_cumulative_cost() -> None:
    told = mirror.rows(trials())
    assert [row["step"] for row in told] == list(range(7))
    assert told[5]["best_val_bpb"] == trials()[3].val_bpb
    assert told[6]["cost"] == pytest.approx(6 * 0.0125)
    assert told[6]["kept"] == 2


@pytest.mark.slow
def test_mirror_offline_sends_each_row_once_in_one_run_over_a_resume(tmp_path: Path) -> None:
    settings = Settings(wandb="offline")
    first = mirror.SessionMirror(settings)
    first.began(session(tmp_path))
    for number in range(3):
        first.decided(number, trials()[number])
    first.ended("stopped")
    second = mirror.SessionMirror(settings)
    second.began(session(tmp_path, trials=tuple(trials()[:3])))
    second.decided(3, trials()[3])
    second.found([NOISE])
    second.ended("the budget is used up")
    identity = json.loads((tmp_path / "wandb.json").read_text())
    assert recorded_steps(tmp_path, identity["id"]) == {0, 1, 2, 3}
    assert recorded_alerts(tmp_path, identity["id"]) == {"iterate: the noise is larger than the improvement claimed"}
    folder = max(tmp_path.glob("wandb/offline-run-*"))
    folder.rename(folder.with_name(f"{folder.name}-1"))  # as W&B names it when both begin in the same second
    assert recorded_steps(tmp_path, identity["id"]) == {0, 1, 2, 3}


def test_mirror_disabled_leaves_no_file(tmp_path: Path) -> None:
    told = mirror.SessionMirror(Settings(wandb="disabled"))
    played(told, tmp_path, 1)
    told.ended("x")
    assert list(tmp_path.iterdir()) == []
