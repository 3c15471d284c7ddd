"""One rank of a training that several processes share, as rank_launch.py starts it: `python -m ratchet.train.rank JOB`.

Refuses to know how many there are.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from ratchet.settings import settings
from ratchet.stage import guarded
from ratchet.train.job import ExperimentJob
from ratchet.train.launch import train_as_rank
from ratchet.train.ranks import Alone, join

FIRST_S = 5.0
"""What another rank's failure waits: rank 0 has most likely failed alike, and it is the one to say why."""


def main() -> None:
    """Arguments: the path of JOB.json, --wandb MODE. Exit code as the training's; 0 for a rank that followed."""
    parser = argparse.ArgumentParser(prog="python -m ratchet.train.rank", description=__doc__)
    parser.add_argument("job", type=Path)
    parser.add_argument("--wandb", required=True)
    asked = parser.parse_args()
    ranks = join()
    code = guarded("train", lambda: _train(asked.job, asked.wandb, ranks))
    if code and ranks.rank:
        time.sleep(FIRST_S)
    sys.exit(code)


def _train(path: Path, wandb: str, ranks: Alone) -> None:
    job = ExperimentJob.read(path)
    here = settings().model_copy(update={"runs": job.runs, "wandb": wandb})
    train_as_rank(job.request(path), job.outputs, here, ranks, hold=False)


if __name__ == "__main__":
    main()
