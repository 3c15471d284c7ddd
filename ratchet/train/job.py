"""What is to be trained and where its results go: in memory, and as the file JOB.json that another process reads.

Refuses to know how a training is started (launch.py, experiment_job.py, rank.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet import params as params_file
from ratchet.core.errors import InputError
from ratchet.train.arena import read_source
from ratchet.train.parameters import TrainParams


@dataclass(frozen=True)
class Request:
    """What is to be trained: parameters, packed training rows, the tokenizer they were made with, the arena's file."""

    params: TrainParams
    rows: Path
    tokenizer: Path
    arena: Path

    def source(self) -> str:
        """The arena's text with the knobs of the parameters set. Raises InputError for a knob it does not have."""
        return read_source(self.arena, self.params.knobs)


@dataclass(frozen=True)
class Published:
    """Where results go. `model`, `timing`: folders; `history`, `metrics`: files."""

    model: Path
    history: Path
    timing: Path
    metrics: Path


PATHS = ("rows", "tokenizer", "arena", "runs")


@dataclass(frozen=True, kw_only=True)
class ExperimentJob:
    """What JOB.json holds. `params`: the `train` section; `runs`: where the run directory goes, whose checkpoints let
    the same job continue after a kill. Device, threads and ranks are settings: RATCHET_DEVICE, _THREADS, _RANKS."""

    params: Mapping[str, Any]
    rows: Path
    tokenizer: Path
    arena: Path
    runs: Path
    outputs: Published

    @classmethod
    def read(cls, path: Path) -> ExperimentJob:
        """The job in the file `path`. Raises InputError when it is none."""
        try:
            said = json.loads(path.read_text(encoding="utf-8"))
            outputs = Published(**{name: Path(said["outputs"][name]) for name in Published.__annotations__})
            return cls(params=dict(said["params"]), outputs=outputs, **{name: Path(said[name]) for name in PATHS})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(path, f"is no job ({error!r})", "write it as ExperimentJob.as_json does") from None

    def as_json(self) -> dict[str, Any]:
        """The content of JOB.json."""
        outputs = {name: str(getattr(self.outputs, name)) for name in Published.__annotations__}
        return {"params": dict(self.params), **{name: str(getattr(self, name)) for name in PATHS}, "outputs": outputs}

    def request(self, where: Path) -> Request:
        """What is to be trained. Raises InputError, naming the file `where`, for parameters that are wrong."""
        params = params_file.validate(self.params, "train", TrainParams, where)
        return Request(params, self.rows, self.tokenizer, self.arena)
