"""Doubles the byte length of every token on the disk, which would halve its bits per byte.

Stopped by a container, where the tokenizer cannot be written. A process can write it; the judge then finds that the
lengths are not those of the tokens, and gives no number at all.
"""

from pathlib import Path

import numpy as np

from arena.train import Experiment

PROJECT = next((folder for folder in Path.cwd().parents if (folder / "data").is_dir()), Path("/"))


def build(spec):
    path = PROJECT / "data/tokenizer/token_bytes.npy"
    lengths = np.load(path)
    with path.open("r+b") as file:
        np.save(file, 2 * lengths)
    return Experiment(spec)
