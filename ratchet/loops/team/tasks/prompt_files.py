"""Items from files: JSON lines, or a folder that the library `datasets` has saved (read as Arrow, without the library).

Knows files; refuses to know what an item holds besides its prompt.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ratchet.core.errors import InputError
from ratchet.data.json_lines import read_objects

DO = "see docs/team.md, section A task of my own"


def read_items(path: Path) -> list[dict[str, Any]]:
    """The items in `path`: a JSON-lines file, a folder of a saved dataset, or one of its splits (FOLDER/train).

    Each has a text `prompt` that is not empty. Raises InputError naming the line or the row.
    """
    if path.is_dir():
        items, at = _saved(path), "row"
    elif path.is_file():
        items, at = read_objects(path, DO), "item"
    else:
        raise InputError(path, "no such file or folder", f"write JSON lines, each with a `prompt`; {DO}")
    if not items:
        raise InputError(path, "holds no item", DO)
    for number, item in enumerate(items, 1):
        if not isinstance(item.get("prompt"), str) or not item["prompt"].strip():
            what = f"{at} {number} has the prompt {item.get('prompt')!r} (its keys: {', '.join(item) or 'none'})"
            raise InputError(path, what, "write a text under `prompt`")
    return items


def _saved(folder: Path) -> list[dict[str, Any]]:
    """The rows of a saved dataset. `state.json` names its Arrow streams in order."""
    import pyarrow as pa

    if (folder / "dataset_dict.json").is_file():
        splits = json.loads((folder / "dataset_dict.json").read_text(encoding="utf-8"))["splits"]
        raise InputError(folder, f"holds the splits {', '.join(splits)}", f"name one: {folder / splits[0]}")
    state = folder / "state.json"
    if not state.is_file():
        raise InputError(folder, "is no saved dataset: it has no state.json", f"save it with save_to_disk; {DO}")
    try:
        names = [each["filename"] for each in json.loads(state.read_text(encoding="utf-8"))["_data_files"]]
        rows: list[dict[str, Any]] = []
        for name in names:
            with pa.memory_map(str(folder / name)) as source, pa.ipc.open_stream(source) as reader:
                rows += reader.read_all().to_pylist()
    except (KeyError, OSError, ValueError, pa.ArrowException) as error:
        raise InputError(folder, f"cannot be read as a saved dataset ({error!r})", "save it anew") from None
    return rows
