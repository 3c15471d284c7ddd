"""A provider that answers from a script: for tests and for dry runs, without network and without cost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from ratchet.llm.client import CallError, Reply, Request, Trouble

Line = str | Reply | Exception


class Scripted:
    """Answers with `script`, in order, or with what `script(request)` returns. `asked`: the requests so far.

    An exception in the script is raised. A script at its end fails like an outage.
    """

    def __init__(self, script: Sequence[Line] | Callable[[Request], Line]) -> None:
        self._script = script
        self._lock = threading.Lock()
        self.asked: list[Request] = []

    def complete(self, request: Request) -> Reply:
        """The next line of the script."""
        with self._lock:
            place = len(self.asked)
            self.asked.append(request)
        line = self._script(request) if callable(self._script) else self._at(place)
        if isinstance(line, Exception):
            raise line
        if isinstance(line, str):
            return Reply(text=line, prompt_tokens=len(request.text().split()), completion_tokens=len(line.split()))
        return line

    def _at(self, place: int) -> Line:
        script = self._script
        if callable(script) or place >= len(script):
            return CallError("script", Trouble.OUTAGE, f"no line {place + 1}", "add one")
        return script[place]
