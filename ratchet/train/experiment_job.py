"""One training of one arena, as a sandbox runs it: `python -m ratchet.train.experiment_job JOB.json`.

The leaf of the research loop: reads the packed training rows, the tokenizer and an arena, keeps its own run directory,
writes the outputs that the job names. Refuses to know validation and test data, scores, and who asked.
Everything it writes is a claim of the candidate's code, which runs in this process; ratchet/train/claims.py checks it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet import params as params_file
from ratchet.core.errors import InputError, RatchetError
from ratchet.settings import settings
from ratchet.stage import guarded
from ratchet.train.launch import Published, Request, train_and_publish
from ratchet.train.parameters import TrainParams

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

    def train(self, where: Path = Path("JOB.json")) -> None:
        """Train to the stop step and publish. Raises what `train_and_publish` does, and whatever the arena raises.

        Nothing goes to W&B: a process with a candidate's code in it gets no key, and mirrors nothing.
        """
        params = params_file.validate(self.params, "train", TrainParams, where)
        here = settings().model_copy(update={"runs": self.runs, "wandb": "disabled"})
        train_and_publish(Request(params, self.rows, self.tokenizer, self.arena), self.outputs, here)


def run(path: Path) -> None:
    """Train the job in `path`; what the arena's code raises becomes one last line that says where."""
    job = ExperimentJob.read(path)
    try:
        job.train(path)
    except (RatchetError, KeyboardInterrupt):
        raise
    except Exception as error:  # noqa: BLE001  (the boundary: whatever a candidate does is told in one line)
        traceback.print_exc()
        raise InputError("experiment", said(error), "mend the arena") from None


def said(error: Exception) -> str:
    """`<type>: <message>` on one line, with the arena's line that it came from, if it did."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f"arena.py:{frame.lineno}, in {frame.name}" for frame in frames if Path(frame.filename).name == "arena.py"]
    return f"{type(error).__name__}: {error}{f' ({own[-1]})' if own else ''}"


def named_by(file: Path) -> Path:
    """The path that `file` holds, once it is there; meanwhile what every training imports is imported."""
    import torch._dynamo  # noqa: F401  (AdamW does it: 2 s that need not be waited for later)

    while not file.exists():
        time.sleep(0.02)
    return Path(file.read_text(encoding="utf-8"))


def main() -> None:
    """Argument: the path of JOB.json, or --wait FILE. Exit code 0, or the last line printed says why not."""
    parser = argparse.ArgumentParser(prog="python -m ratchet.train.experiment_job", description=__doc__)
    parser.add_argument("job", type=Path, nargs="?")
    parser.add_argument("--wait", type=Path, metavar="FILE", help="import everything, then wait for FILE: it names JOB")
    asked = parser.parse_args()
    path = named_by(asked.wait) if asked.wait else asked.job
    sys.exit(guarded("experiment", lambda: run(path)))


if __name__ == "__main__":
    main()
