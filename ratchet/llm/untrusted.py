"""Text that somebody else wrote (a model, a run, an endpoint) made safe to show and to quote.

Refuses to know what the text is about.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata

_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b.")
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn")
"""Unicode categories that steer a terminal, reverse text, or show nothing: control, format, surrogates, unassigned."""


def plain(text: str) -> str:
    """`text` without terminal sequences, control and invisible characters; line ends are \\n, tabs are spaces."""
    text = _ESCAPES.sub("", text.replace("\r\n", "\n").replace("\r", "\n")).replace("\t", "    ")
    return "".join(letter for letter in text if letter == "\n" or unicodedata.category(letter) not in _HIDDEN)


def one_line(text: str, longest: int = 200) -> str:
    """`plain(text)` on one line of at most `longest` characters."""
    line = " ".join(plain(text).split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def quoted(text: str, name: str) -> str:
    """`text` as a block that it cannot close: each line is marked, and the ends carry a hash of the text itself."""
    lines = plain(text).splitlines()
    tag = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]
    return "\n".join([f"[begin {name} {tag}]", *(f"| {line}" for line in lines), f"[end {name} {tag}]"])
