"""Objects from a user's file of JSON lines.

Knows lines and JSON; refuses to know what an object holds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from ratchet.core.errors import InputError


def read_objects(path: Path, do: str) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file in UTF-8, blank lines left out. Raises InputError naming the line.

    `do`: where to read how such a file is written, as the end of an error.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(path, f"not UTF-8 at byte {error.start}", "save the file as UTF-8") from None
    found: list[dict[str, Any]] = []
    for number, line in enumerate(text.split("\n"), 1):  # splitlines would cut at U+2028, which JSON may hold
        if not line.strip():
            continue
        try:
            value: Any = json.loads(line)
        except ValueError as error:
            raise InputError(f"{path}:{number}", f"is no JSON ({error})", f"write one object a line; {do}") from None
        if not isinstance(value, dict):
            raise InputError(f"{path}:{number}", f"holds a {type(value).__name__}, not an object", do)
        found.append(cast("dict[str, Any]", value))
    return found
