"""SIGINT and SIGTERM as a wish that the work underway can look at, instead of an exception in its middle.

Knows signals; refuses to know what is interrupted.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

WATCHED = (signal.SIGINT, signal.SIGTERM)
STOPPED_CODE = 128 + signal.SIGTERM
"""Exit code after `ratchet stop`: that of SIGTERM. Nothing is published, so DVC must not take it for success."""


class Interruption:
    """Inside the context the first signal is noted in `received`; a second one ends the process as it always would.

    Exit codes by convention: 130 after SIGINT, 143 after SIGTERM (`exit_code`). Outside the main thread, where Python
    lets nobody handle signals, it notes nothing. `says` is told at the signal, `{name}` in it its name.
    """

    def __init__(self, says: str = "train: {name}: saving after this step; once more to stop at once") -> None:
        self._says = says
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in WATCHED}
        return self

    def __exit__(self, *exception: object) -> None:
        self._restore()

    @property
    def exit_code(self) -> int:
        """128 + the signal's number; 0 when none came."""
        return 128 + self.received if self.received else 0

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        self._restore()
        # os.write: print is not allowed to interrupt a print
        os.write(2, f"\n{self._says.format(name=self.received.name)}\n".encode())

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
