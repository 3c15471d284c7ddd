"""A run's store that saves behind the training's back: `commit` returns when the blobs are written, and a thread makes
them durable, verified and the newest while the next segment runs.

What a blob is made from may change as soon as `commit` returns. A kill meanwhile resumes from the checkpoint before, to
the same bytes. Refuses to know what a blob holds and how a checkpoint is committed (core/checkpoint.py).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from ratchet.core import atomic
from ratchet.core.checkpoint import Blobs, Store
from ratchet.loops.team.concurrency import at_once


class StoreBehind(Store):
    """`store`, for as long as this process has the run. `named`: called with each checkpoint that has become the
    newest, its number and state. Not to be left before `wait` or `finish`: the run's lock would be given back.
    """

    def __init__(self, store: Store, named: Callable[[int, Mapping[str, Any]], object]) -> None:
        vars(self).update(vars(store))
        self._named = named
        self._thread = ThreadPoolExecutor(1, "commit")
        self._pending: Future[None] | None = None
        self._handed = 0

    @property
    def newest(self) -> int:
        """The number of the checkpoint handed to `commit` last, else of the one loaded; 0 without any."""
        return self._handed or self.seq or 0

    def commit(self, seq: int, state: Mapping[str, Any], blobs: Blobs, *, score: float | None = None) -> None:
        """As `Store.commit`, but what makes it durable is still to come. One at a time: raises what the one before met
        (OSError of a full disk, say)."""
        self.wait()
        if self.seq is None:
            self.load()  # it sweeps
        written = self.capture(blobs)
        self._handed = seq
        self._pending = self._thread.submit(self.make_durable, written, seq, state, list(blobs), score)

    def capture(self, blobs: Blobs) -> Path:
        """A folder with `blobs` as they are now, written by as many threads as there are, in no way durable."""
        written = atomic.temp_beside(self.folder / "captured")
        shutil.rmtree(written, ignore_errors=True)
        written.mkdir(parents=True)
        try:
            at_once([partial(write, written / name) for name, write in blobs.items()])
        except BaseException:
            shutil.rmtree(written)
            raise
        return written

    def make_durable(
        self, written: Path, seq: int, state: Mapping[str, Any], names: Sequence[str], score: float | None
    ) -> None:
        """Commit what lies in `written`, which goes."""
        try:
            super().commit(seq, state, {name: partial(_move, written / name) for name in names}, score=score)
        finally:
            shutil.rmtree(written)
        self._named(seq, state)

    def wait(self) -> None:
        """Return when what was handed to `commit` is the newest checkpoint. Raises what went wrong instead."""
        if self._pending is not None:
            error = self._pending.exception()  # interrupted here, it is still there for `finish`
            self._pending = None
            if error is not None:
                raise error

    def finish(self) -> None:
        """Let a commit under way end, well or not: for where something else has gone wrong already."""
        if self._pending is not None:
            self._pending.exception()
            self._pending = None


def _move(source: Path, target: Path) -> None:
    source.replace(target)
