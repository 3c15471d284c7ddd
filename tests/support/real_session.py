"""A research session of real trainings and judgings at toy size: the toy training project in a git repository."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.support.toy_training import KNOBS, ROOT, make_project
from toy_session import git

REAL: dict[str, Any] = {
    "noise_seeds": 2,
    "judged_rows": 8,
    "train": {
        "horizon": {"unit": "steps", "value": 2},
        "dtype": "float32",
        "knobs": KNOBS,
        "checkpoint": {"every_steps": 1, "every_seconds": 1000.0},
    },
    "limits": {"memory_mb": 2048, "processes": 64, "floor_seconds": 20.0},
}
"""What a real session at toy size has for parameters."""


def real_project(folder: Path) -> Path:
    """Tokenizer, packed splits, the real arena and program.md, committed."""
    folder.mkdir(parents=True)
    make_project(folder)
    shutil.copytree(folder / "data/pack/val", folder / "data/pack/test")
    shutil.copy(ROOT / "arena/program.md", folder / "arena/program.md")
    (folder / ".gitignore").write_text("/runs/\n/data/\n/out/\n")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-q", "-m", "first")
    return folder
