"""A job's last words: the end of its log as text that cannot steer a terminal."""

from __future__ import annotations

import os
import re
from pathlib import Path

LINES, LETTERS, TAIL_BYTES = 12, 400, 16 * 1024

_ESCAPE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|.)?")


def last_lines(log: Path) -> tuple[str, ...]:
    """The last lines of `log`, at most LINES of LETTERS; none when there is no log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ()
    lines = (printable(line).rstrip() for line in re.split(r"[\r\n]+", text))
    return tuple([line for line in lines if line.strip()][-LINES:])


def printable(text: str) -> str:
    """`text` without escape sequences and control characters, cut to LETTERS."""
    plain = "".join(letter if letter.isprintable() else " " for letter in _ESCAPE.sub("", text))
    return plain[:LETTERS]
