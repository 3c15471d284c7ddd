"""What a person sees of a running training: a bar on a terminal, plain lines elsewhere, and a file for other processes.

Knows rows and a text stream; refuses to know what is committed. The live file and the log are no record: they may hold
steps that a kill threw away, and a resumed run goes over them again.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

LIVE_FILE, LOG_FILE = "progress.json", "train.log"
WRITE_SECONDS = 1.0
"""The live file and the bar change at most this often: a step may take a millisecond."""

RATE_STEPS = 20


class Watch:
    """Shows each step. Writes `progress.json` and `train.log` in `folder`; a full disk there is no reason to stop."""

    def __init__(self, folder: Path, *, interval: int, stream: TextIO | None = None) -> None:
        self._folder, self._stop, self._interval = folder, 0, interval
        self._stream = stream or sys.stderr
        self._recent: deque[float] = deque(maxlen=RATE_STEPS)
        self._written = 0.0
        self._bar, self._task = _bar(self._stream) if self._stream.isatty() else (None, TaskID(0))
        self._log: TextIO | None = None
        with suppress(OSError):
            self._log = (folder / LOG_FILE).open("a", encoding="utf-8")

    def __enter__(self) -> Watch:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar:
            self._bar.stop()
        with suppress(OSError):
            if self._log:
                self._log.close()
            (self._folder / LIVE_FILE).unlink(missing_ok=True)

    def aim(self, stop_step: int) -> None:
        """The step at which this process will stop, as soon as it is known."""
        self._stop = stop_step
        if self._bar:
            self._bar.update(self._task, total=stop_step)

    def say(self, text: str) -> None:
        """One line, now."""
        self._to_log(text)
        if self._bar:
            self._bar.console.print(text, highlight=False, markup=False)
        else:
            print(text, file=self._stream, flush=True)

    def step(self, row: Mapping[str, Any], step_seconds: float) -> None:
        """Show one finished optimizer step, which took `step_seconds`."""
        self._recent.append(step_seconds)
        last = row["step"] >= self._stop
        due = last or row["step"] % self._interval == 0
        now = time.monotonic()
        refresh = last or now - self._written >= WRITE_SECONDS
        if not due and not refresh:
            return
        left = (self._stop - row["step"]) * sum(self._recent) / len(self._recent)
        if due:
            self._line(row, left)
        if refresh:
            self._written = now
            self._refresh(row, left)

    def _line(self, row: Mapping[str, Any], left: float) -> None:
        rate, loss = row["tokens_per_s"], row["loss"]
        text = f"step {row['step']}/{self._stop}  loss {loss:.4f}  {rate:,.0f} tokens/s  {clock(left)} left"
        self._to_log(text)
        if not self._bar:
            print(text, file=self._stream, flush=True)

    def _refresh(self, row: Mapping[str, Any], left: float) -> None:
        if self._bar:
            loss, rate = f"{row['loss']:.4f}", f"{row['tokens_per_s']:,.0f}"
            self._bar.update(self._task, completed=row["step"], loss=loss, rate=rate, left=clock(left))
        live = {**row, "stop_step": self._stop, "seconds_left": left, "pid": os.getpid(), "at": time.time()}
        temp = self._folder / f".{LIVE_FILE}.part"
        with suppress(OSError):
            temp.write_text(json.dumps(live))
            temp.replace(self._folder / LIVE_FILE)

    def _to_log(self, text: str) -> None:
        with suppress(OSError):
            if self._log:
                print(text, file=self._log, flush=True)


def clock(seconds: float) -> str:
    """Seconds as `M:SS` or `H:MM:SS`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _bar(stream: TextIO) -> tuple[Progress, TaskID]:
    bar = Progress(
        TextColumn("train"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}  {task.fields[rate]} tokens/s  {task.fields[left]} left"),
        console=Console(file=stream),
        refresh_per_second=4,
    )
    return bar, bar.add_task("train", total=None, loss="–", rate="–", left="–")


def read_live(folder: Path) -> dict[str, Any] | None:
    """A run's live file: the last shown step's row with stop_step, seconds_left, pid, at; None when nothing runs."""
    try:
        return json.loads((folder / LIVE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
