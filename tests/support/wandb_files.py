"""W&B's offline files as W&B's own command reads them, which knows nothing of ratchet/train/wandb_files.py."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

INSPECT = (str(Path(sys.executable).with_name("wandb")), "leet", "inspect", "--json")


def inspected(folder: Path) -> Iterator[dict[str, Any]]:
    """Every record in the offline files below `folder`, oldest file first."""
    for file in sorted(folder.rglob("run-*.wandb")):
        if "latest-run" not in file.parts:
            yield from _read(file, file.stat().st_size)


@cache
def _read(file: Path, size: int) -> list[dict[str, Any]]:
    """What `file` holds at this `size`: W&B only ever appends, and the command takes the better part of a second."""
    output = subprocess.run([*INSPECT, str(file)], capture_output=True, text=True, check=True).stdout
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]
