"""Train the model that arena/train.py builds, under the sealed clock; publish it when its stop step is reached.

A killed run continues where it was committed: the run directory lies outside the outputs, which DVC deletes.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ratchet.settings import settings
from ratchet.stage import Needs, Stage
from ratchet.tables import history, timing, training_findings
from ratchet.train.device import used_machine
from ratchet.train.job import Published, Request
from ratchet.train.launch import LOOP, train_and_publish
from ratchet.train.parameters import TrainParams


class Inputs(NamedTuple):
    """Packed training rows, the tokenizer that made them, and the arena."""

    rows: Path = Path("data/pack/train")
    tokenizer: Path = Path("data/tokenizer")
    arena: Path = Path("arena/train.py")


class Outputs(NamedTuple):
    """The model with the source that made it, its history, its timing, its metrics, where they came from."""

    model: Path = Path("data/train/model")
    history: Path = Path("data/train/history.tsv")
    timing: Path = Path("data/train/timing")
    metrics: Path = Path("metrics/train.json")
    provenance: Path = Path("data/train/provenance.json")


def run(params: TrainParams, inputs: Inputs, outputs: Outputs) -> None:
    """Train `inputs` under `params` to the stop step and publish to `outputs`.

    Raises InputError, and SystemExit 130 or 143 after SIGINT or SIGTERM: the state is then committed, not published.
    """
    request = Request(params, inputs.rows, inputs.tokenizer, inputs.arena)
    published = Published(outputs.model, outputs.history, outputs.timing, outputs.metrics)
    train_and_publish(request, published, settings())
    steps = timing.read_steps(outputs.timing / "steps.tsv")
    for alert in training_findings.in_training(history.read(outputs.history), steps):
        print(f"train: {alert.line}")


def needs(_params: TrainParams) -> Needs:
    """The run directories of trainings, which outlive a killed container."""
    named = settings().resume_run
    return Needs(writes=(settings().runs / LOOP, *([named] if named else [])))


STAGE = Stage("train", TrainParams, Inputs(), Outputs(), run, used_machine, needs)

if __name__ == "__main__":
    STAGE.main()
