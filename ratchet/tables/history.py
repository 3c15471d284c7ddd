"""history.tsv: what training did, step by step, and nothing that differs between two runs of the same thing.

Knows the columns; refuses to know time, memory and the trainer.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from pandera.pandas import DataFrameSchema

from ratchet.settings import settings
from ratchet.tables import tsv
from ratchet.tables.rules import count, number

SCHEMA = DataFrameSchema(
    {
        "step": count("optimizer step, counted from 1", low=1, order="rising"),
        "tokens": count("tokens trained on up to and with this step", low=1, order="rising"),
        "epoch": number("passes over the training rows", low=0, order="never falling"),
        "loss": number("mean training loss of the step, nats per token", low=0),
        "lr_scale": number("multiplier of every learning rate", low=0, high=1),
        "grad_norm": number("norm of the gradient before the update; empty when not measured", low=0, nullable=True),
    },
    name="history.tsv",
    description="One row per training step, written by `train` to data/train/history.tsv.",
)

REMEDY = "run `dvc repro --force train` to write it anew"


def read(path: Path, *, runs: Path | None = None) -> pd.DataFrame:
    """The history in `path`. Raises InputError; for one without rows it says that the run died before its first step
    and where its log is: the newest in `runs` (default: the runs folder of the settings)."""
    log = newest_log(runs or settings().runs)
    return tsv.read(path, SCHEMA, empty="the run died before its first step", empty_do=log, do=REMEDY)


def newest_log(runs: Path, loop: str = "train") -> str:
    """What to read when a run of `loop` left nothing else."""
    logs = sorted(runs.glob(f"{loop}/*/{loop}.log"), key=lambda log: log.stat().st_mtime)
    return f"read its log: {logs[-1] if logs else runs / loop / f'<fingerprint>/{loop}.log'}"
