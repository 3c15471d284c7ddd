"""One training of one arena, as a sandbox runs it: `python -m ratchet.train.experiment_job JOB.json`.

The leaf of the research loop: reads the packed training rows, the tokenizer and an arena, keeps its own run directory,
writes the outputs that the job names. Refuses to know validation and test data, scores, and who asked.
Everything it writes is a claim of the candidate's code, which runs in this process; ratchet/train/claims.py checks it.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from pathlib import Path

from ratchet.core.errors import InputError, RatchetError
from ratchet.settings import settings
from ratchet.stage import guarded
from ratchet.train.job import ExperimentJob
from ratchet.train.launch import train_and_publish


def run(path: Path) -> None:
    """Train the job in `path`; what the arena's code raises becomes one last line that says where."""
    job = ExperimentJob.read(path)
    # Nothing goes to W&B: a process with a candidate's code in it gets no key, and mirrors nothing.
    here = settings().model_copy(update={"runs": job.runs, "wandb": "disabled"})
    try:
        train_and_publish(job.request(path), job.outputs, here)
    except RatchetError:
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
