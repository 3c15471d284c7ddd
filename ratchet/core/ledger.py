"""The ledger: one JSON line per step, fsynced before the step counts. Row number = `seq`.

Refuses to know what a row means. A torn last line (the writer was killed) is dropped; damage before it is an error.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from ratchet.core import atomic
from ratchet.core.errors import InputError

Row = dict[str, Any]


class Ledger:
    """The rows of one run, read once and then kept in memory: one writer (the run's lock sees to that), any readers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read: tuple[list[Row], list[int]] | None = None

    def rows(self) -> list[Row]:
        """Every good row, in order; each has its `seq`. Raises InputError naming the line when one is corrupt."""
        return list(self._load()[0])

    def put(self, seq: int, row: Mapping[str, Any]) -> None:
        """Make `row` the row `seq`, durably; a row `seq` that is there, and all after it, are replaced.

        Raises InputError when `seq` would leave a gap or `row` is no JSON (NaN and infinity are none).
        """
        rows, ends = self._load()
        if not 0 <= seq <= len(rows):
            raise InputError(self.path, f"row {seq} does not follow the {len(rows)} there are", "put rows in order")
        text = atomic.json_line({"seq": seq} | dict(row) | {"seq": seq}, self.path)
        start = ends[seq - 1] if seq else 0
        self._write(start, text.encode())
        self._read = [*rows[:seq], json.loads(text)], [*ends[:seq], start + len(text)]

    def _write(self, start: int, line: bytes) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = not self.path.exists()
        with self.path.open("wb" if new else "r+b") as file:
            file.truncate(start)
            file.seek(start)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        if new:
            atomic.fsync_folder(self.path.parent)

    def _load(self) -> tuple[list[Row], list[int]]:
        """The rows, and the byte after each; an unfinished last line counts as not written and `put` overwrites it."""
        if self._read is None:
            lines = self.path.read_bytes().split(b"\n") if self.path.exists() else [b""]
            torn = lines.pop()
            rows: list[Row] = []
            ends: list[int] = []
            for number, line in enumerate(lines):
                row = _parse(line, number)
                if row is None and number == len(lines) - 1 and not torn:
                    break
                if row is None:
                    what = f"is not row {number}: {line[:60].decode(errors='replace')!r}"
                    raise InputError(f"{self.path}:{number + 1}", what, "restore the file, or remove the run")
                rows.append(row)
                ends.append((ends[-1] if ends else 0) + len(line) + 1)
            self._read = rows, ends
        return self._read


def _parse(line: bytes, seq: int) -> Row | None:
    try:
        row: Any = json.loads(line)
    except ValueError:
        return None
    return cast("Row", row) if isinstance(row, dict) and cast("Row", row).get("seq") == seq else None
