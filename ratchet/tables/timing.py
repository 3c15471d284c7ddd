"""The timing files: seconds, throughput and memory, kept apart from results because they differ on every run.

Knows the columns; refuses to know who measured them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from pandera.pandas import DataFrameSchema

from ratchet.settings import settings
from ratchet.tables import records, tsv
from ratchet.tables.history import REMEDY, newest_log
from ratchet.tables.rules import count, number

STEPS = DataFrameSchema(
    {
        "step": count("optimizer step, counted from 1", low=1, order="rising"),
        "seconds": number("training seconds up to and with this step", low=0, order="never falling"),
        "tokens_per_s": number("tokens per second of this step", low=0),
        "memory_mb": number("memory in use after this step, MB", low=0, nullable=True),
    },
    name="timing/steps.tsv",
    description="One row per training step, written by `train` to data/train/timing/steps.tsv.",
)

SUMMARY = DataFrameSchema(
    {
        "training_seconds": number("seconds spent in training steps", low=0),
        "total_seconds": number("seconds from the start of the process to its end", low=0),
        "startup_seconds": number("seconds before the first trained step: loading, compiling, warm-up", low=0),
        "tokens_per_s": number("tokens per second over all training steps", low=0),
        "peak_vram_mb": number("peak memory of the device; of the process when the device is a CPU, MB", low=0),
        "mfu_percent": number("share of the device's peak arithmetic, %", low=0, nullable=True),
        "checkpoint_seconds": number("seconds that training waited for checkpoints", low=0),
    },
    name="timing/summary.json",
    description="One object, written by `train` to data/train/timing/summary.json.",
)


JUDGING = DataFrameSchema(
    {
        "tokens_per_s": number("tokens judged per second", low=0),
        "seconds": number("seconds from the first question to the last answer", low=0),
        "startup_seconds": number("seconds until the candidates had loaded the model", low=0),
        "ngram_seconds": number("seconds that the byte n-gram model took", low=0),
        "probe_max_shift_nats": number("how far the secret probe saw an answer move, nats of one target", low=0),
    },
    name="evaluate/timing.json",
    description="One object, written by `evaluate` to data/evaluate/timing.json.",
)


def read_steps(path: Path) -> pd.DataFrame:
    """The per-step timing in `path`. Raises InputError or TableError."""
    log = newest_log(settings().runs)
    return tsv.read(path, STEPS, empty="the run died before its first step", empty_do=log, do=REMEDY)


def read_summary(path: Path) -> dict[str, Any]:
    """The timing summary in `path`. Raises InputError or TableError."""
    return records.read(path, SUMMARY, do=REMEDY)


def read_judging(path: Path) -> dict[str, Any]:
    """The judge's timing in `path`. Raises InputError or TableError."""
    return records.read(path, JUDGING, do="run `dvc repro --force evaluate` to write it anew")
