"""A session as a person watches it: a panel that changes on a terminal, plain lines elsewhere, files for others.

Knows a board and streams; refuses to know what an experiment is made of. What a proposer wrote is shown as text, never
as markup, with control characters taken out.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Protocol, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ratchet.loops.research.board import Board
from ratchet.loops.research.events import Events, Session
from ratchet.loops.research.mirror import SessionMirror
from ratchet.loops.research.records import Status, Trial
from ratchet.settings import Settings
from ratchet.tables import results
from ratchet.tables.findings import Found
from ratchet.tables.results import one_line
from ratchet.train.progress import LIVE_FILE, clock

LOG_FILE = "iterate.log"
RESULTS_FILE = "results.tsv"
WRITE_SECONDS = 1.0
"""The live file changes at most this often between two rows."""
ROWS = 8
REFRESHES = 4
LOOKS = {Status.KEEP: "green", Status.DISCARD: "dim", Status.CRASH: "red"}


class Screen(Protocol):
    """Somewhere that a session is shown."""

    def show(self, board: Board, line: str | None) -> None:
        """The board has changed; `line` says what happened when it is worth a line."""
        ...

    def close(self, board: Board) -> None:
        """The session has ended, or this process' part of it."""
        ...


class View:
    """An Events that keeps a board and tells its screens."""

    def __init__(self, *screens: Screen) -> None:
        self.board, self._screens = Board(), screens

    def began(self, session: Session) -> None:
        """See Events."""
        self.board.began(session)
        self._show(greeting(session))

    def proposing(self, number: int) -> None:
        """See Events."""
        self.board.proposing(number)
        self._show(None)

    def started(self, number: int, description: str) -> None:
        """See Events."""
        self.board.started(number, description)
        self._show(f"{self._place(number)}: training: {one_line(description)}")

    def progressed(self, number: int, step: int, of: int) -> None:
        """See Events."""
        self.board.progressed(number, step, of)
        self._show(None)

    def trained(self, number: int, seconds: float) -> None:
        """See Events."""
        self.board.trained(number, seconds)
        self._show(f"{self._place(number)}: trained in {seconds:.0f} s, judging")

    def judged(self, number: int, val_bpb: float) -> None:
        """See Events."""
        self.board.judged(number, val_bpb)
        self._show(f"{self._place(number)}: {val_bpb:.6f} bits per byte")

    def decided(self, number: int, trial: Trial) -> None:
        """See Events."""
        self.board.decided(number, trial)
        self._show(f"{self._place(number)}: {verdict(self.board, trial)}")

    def noted(self, text: str) -> None:
        """See Events."""
        self.board.noted(text)
        self._show(one_line(text))

    def found(self, findings: Sequence[Found]) -> None:
        """See Events."""
        for each in findings:
            self.noted(each.line)

    def ended(self, why: str) -> None:
        """See Events."""
        self.board.ended(why)
        self._show(f"ended: {one_line(why)}")
        self.close()

    def close(self) -> None:
        """Nothing more is shown."""
        for screen in self._screens:
            screen.close(self.board)

    def _show(self, line: str | None) -> None:
        with self.board.lock:  # lines of several workers do not mix
            for screen in self._screens:
                screen.show(self.board, line)

    def _place(self, number: int) -> str:
        if not number:
            return "baseline"
        return f"experiment {number}" + (f"/{self.board.total}" if self.board.total is not None else "")


def greeting(session: Session) -> str:
    """The first line."""
    caps = [
        None if session.experiments is None else f"{session.experiments} experiments",
        None if session.seconds is None else f"{session.seconds / 3600:g} hours",
        None if session.money is None else f"{session.money:g} of money",
    ]
    at_most = ", ".join(cap for cap in caps if cap)
    goes_on = f", goes on after {len(session.trials)} rows" if session.trials else ""
    return (
        f"session {session.tag}: {session.proposer} proposes, isolation {session.isolation}, at most {at_most}{goes_on}"
    )


def verdict(board: Board, trial: Trial) -> str:
    """A row as a line."""
    score = "" if trial.val_bpb is None else f" {trial.val_bpb:.6f}"
    best, left = board.best, board.seconds_left()
    now = "" if best is None or best.val_bpb is None else f"; best {best.val_bpb:.6f}"
    time_left = "" if left is None else f"; {clock(left)} left"
    return f"{trial.status}{score}: {one_line(trial.reason)}{now}{time_left}"


class Lines:
    """Plain lines on a stream that is no terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, board: Board, line: str | None) -> None:
        """See Screen."""
        del board
        if line is not None:
            print(f"iterate: {line}", file=self._stream, flush=True)

    def close(self, board: Board) -> None:
        """See Screen."""


class Panel:
    """A panel on a terminal that is drawn anew a few times a second."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None

    def show(self, board: Board, line: str | None) -> None:
        """See Screen."""
        del line
        if self._live is None:
            draw: Callable[[], RenderableType] = lambda: panel(board)  # noqa: E731  (time left goes on by itself)
            self._live = Live(get_renderable=draw, console=self._console, refresh_per_second=REFRESHES)
            self._live.start()

    def close(self, board: Board) -> None:
        """See Screen."""
        del board
        if self._live is not None:
            self._live.stop()
            self._live = None


class Folder:
    """Files in the run directory: `progress.json` (the board), `results.tsv` so far, `iterate.log`.

    They are no record (the ledger is): what a kill left half is written anew, and a full disk stops nothing.
    """

    def __init__(self) -> None:
        self._written, self._rows = 0.0, -1

    def show(self, board: Board, line: str | None) -> None:
        """See Screen."""
        folder = board.session.folder if board.session else None
        if folder is None:
            return
        with suppress(OSError):
            if line is not None:
                _append(folder / LOG_FILE, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")
            if line is not None or time.monotonic() - self._written >= WRITE_SECONDS:
                self._written = time.monotonic()
                _replace(folder / LIVE_FILE, json.dumps(board.as_json()))
            if board.trials and len(board.trials) != self._rows:
                self._rows = len(board.trials)
                _replace(folder / RESULTS_FILE, results.written(asdict(trial) for trial in board.trials))

    def close(self, board: Board) -> None:
        """See Screen."""
        if board.session and board.session.folder:
            with suppress(OSError):
                (board.session.folder / LIVE_FILE).unlink(missing_ok=True)


def _append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def _replace(path: Path, text: str) -> None:
    temp = path.with_name(f".{path.name}.part")
    temp.write_text(text, encoding="utf-8")
    temp.replace(path)


def on(stream: TextIO | None = None) -> View:
    """The view of a session in this process: on `stream` (stderr), and in its run directory."""
    to: TextIO = sys.stderr if stream is None else stream  # pyright: ignore[reportAssignmentType]  (never without one)
    return View(Folder(), Panel(Console(file=to)) if to.isatty() else Lines(to))


@contextmanager
def watching(settings: Settings) -> Generator[tuple[Events, ...]]:
    """Who watches a session of the stage: a person, other processes, Weights & Biases. However it ends, the terminal
    is itself again afterwards."""
    view = on()
    try:
        yield view, SessionMirror(settings)
    finally:
        view.close()


def panel(board: Board) -> Group:
    """The board as it stands."""
    with board.lock:
        parts: list[RenderableType] = [_head(board), _best(board)]
        if board.attempts:
            parts.append(_now(board))
        if board.trials:
            parts.append(_rows(board.trials))
        parts += [Text(f"· {note}", style="dim") for note in board.notes]
        if board.why:
            parts.append(Text(f"ended: {board.why}", style="bold"))
        return Group(*parts)


def _head(board: Board) -> Table:
    session, grid = board.session, Table.grid(expand=True)
    grid.add_column(ratio=1)
    grid.add_column(justify="right")
    of = f" of {board.total}" if board.total is not None else ""
    left = board.seconds_left()
    told = [f"experiment {min(board.done + bool(board.attempts), board.total or 10**9)}{of}"]
    told += [f"{clock(left)} left"] if left is not None else []
    told += [f"cost {board.cost:.2f}"] if board.cost else []
    who = f"{session.proposer} · isolation {session.isolation}" if session else ""
    grid.add_row(Text(f"ratchet/{session.tag if session else ''}  {who}", style="bold"), Text(" · ".join(told)))
    return grid


def _best(board: Board) -> Text:
    best = board.best
    if best is None or best.val_bpb is None:
        return Text("best –  the baseline is being measured")
    text = Text("best ", style="bold")
    text.append(f"{best.val_bpb:.6f}", style="bold green")
    if board.gain:
        text.append(f"  {-board.gain:+.6f} from the baseline  ")
    text.append(f" {_spark(board.trials)} ", style="green")
    return text.append(one_line(best.description)[:60], style="dim")


def _spark(trials: Sequence[Trial], width: int = 32) -> str:
    """The running best as a row of blocks, the newest at the right: a lower one is better."""
    best: list[float] = []
    for trial in trials:
        if trial.status is Status.KEEP and trial.val_bpb is not None:
            best.append(trial.val_bpb)
        elif best:
            best.append(best[-1])
    shown = best[-width:]
    low, high = (min(shown), max(shown)) if shown else (0.0, 0.0)
    if high == low:
        return "▄" * len(shown)
    return "".join("▁▂▃▄▅▆▇█"[round(7 * (score - low) / (high - low))] for score in shown)


def _now(board: Board) -> Table:
    table = Table.grid(padding=(0, 2))
    for number, attempt in sorted(board.attempts.items()):
        done: RenderableType = Text("")
        if attempt.phase == "training" and attempt.of:
            done = ProgressBar(total=attempt.of, completed=attempt.step, width=24)
        phase = f"{attempt.phase} {attempt.step}/{attempt.of}" if attempt.phase == "training" else attempt.phase
        table.add_row(
            Text(f"▶ {number}", style="bold"), Text(phase), done, Text(attempt.description, overflow="ellipsis")
        )
    return table


def _rows(trials: Sequence[Trial]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", expand=True)
    for name, right in (("", True), ("status", False), ("bits per byte", True), ("gain", True)):
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    table.add_column("what", ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column("why", ratio=1, no_wrap=True, overflow="ellipsis")
    for number, trial in list(enumerate(trials))[-ROWS:]:
        score = "–" if trial.val_bpb is None else f"{trial.val_bpb:.6f}"
        gain = "" if trial.delta is None else f"{trial.delta:+.6f}"
        said = (str(number), str(trial.status), score, gain, one_line(trial.description), one_line(trial.reason))
        table.add_row(*(Text(each) for each in said), style=LOOKS[trial.status])
    return table
