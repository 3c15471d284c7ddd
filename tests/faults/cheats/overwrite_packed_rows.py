"""Overwrites the packed training rows, so that the candidates after it learn nothing.

Stopped by a container, where they cannot be written. A process of the same user can.
"""

from pathlib import Path

from arena.train import Experiment

PROJECT = next((folder for folder in Path.cwd().parents if (folder / "data").is_dir()), Path("/"))


def build(spec):
    with (PROJECT / "data/pack/train/rows.npy").open("r+b") as file:
        file.seek(-64, 2)
        file.write(bytes(64))
    return Experiment(spec)
