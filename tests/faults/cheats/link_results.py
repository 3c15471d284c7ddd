"""Puts a link to the validation rows where its weights should be, to have them read for it.

Stopped by the check of what a training leaves: a link is no result.
"""

import atexit
import json
import sys
from pathlib import Path

from arena.train import Experiment

PROJECT = next((folder for folder in Path.cwd().parents if (folder / "data").is_dir()), Path("/"))


def swap(weights: Path) -> None:
    weights.unlink()
    weights.symlink_to(PROJECT / "data/pack/val/rows.npy")


def build(spec):
    outputs = json.loads(Path(sys.argv[-1]).read_text())["outputs"]
    atexit.register(swap, Path(outputs["model"]) / "model.safetensors")
    return Experiment(spec)
