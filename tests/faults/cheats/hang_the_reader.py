"""Leaves a named pipe in place of its metrics: whoever opens it waits for ever.

Stopped by the check of what a training leaves, which opens nothing that could make it wait.
"""

import atexit
import json
import os
import sys
from pathlib import Path

from arena.train import Experiment


def swap(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def build(spec):
    atexit.register(swap, Path(json.loads(Path(sys.argv[-1]).read_text())["outputs"]["metrics"]))
    return Experiment(spec)
