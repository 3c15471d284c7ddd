"""Stage iterate: improve arena/train.py by proposing, training, judging, keeping what is better; docs/research.md.

The arena in the checkout is not changed: `ratchet promote` does that. A killed session continues where it was
committed: its run directory lies outside the outputs, which DVC deletes.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ratchet.loops.research.parameters import IterateParams
from ratchet.loops.research.session import Parts, Published, Request, iterate_and_publish
from ratchet.loops.research.view import watching
from ratchet.settings import settings
from ratchet.stage import Needs, Stage
from ratchet.train.device import used_machine


class Inputs(NamedTuple):
    """The packed splits, the tokenizer that made them, the arena, and what the researcher is told.

    `evaluated` is there for the order alone: a session and the stage `train` beside it would fight for the cores.
    """

    train: Path = Path("data/pack/train")
    val: Path = Path("data/pack/val")
    test: Path = Path("data/pack/test")
    tokenizer: Path = Path("data/tokenizer")
    arena: Path = Path("arena/train.py")
    program: Path = Path("arena/program.md")
    evaluated: Path = Path("metrics/evaluate.json")


class Outputs(NamedTuple):
    """The session (rows, best arena, history, each experiment), its metrics, where they came from."""

    session: Path = Path("data/iterate")
    metrics: Path = Path("metrics/iterate.json")
    provenance: Path = Path("data/iterate-provenance.json")


def run(params: IterateParams, inputs: Inputs, outputs: Outputs) -> None:
    """Run the session to its end and publish it. Raises as `iterate_and_publish` does."""
    *read, _ = inputs
    request = Request(params, *read, project=Path.cwd())
    with watching(settings()) as listeners:
        published = Published(outputs.session, outputs.metrics)
        told = iterate_and_publish(request, published, settings(), Parts(listeners=listeners))
    best = f"val_bpb {told['baseline_val_bpb']:.6f} -> {told['val_bpb']:.6f}"
    print(f"iterate: {told['experiments']} experiments, {told['kept']} kept, {best}; see {outputs.session}/learned.md")


def needs(_params: IterateParams) -> Needs:
    """The engine and the repository: the session drives jobs, each of which goes into a sandbox of its own."""
    return Needs(outside="it drives experiments, each in a sandbox of its own")


STAGE = Stage("iterate", IterateParams, Inputs(), Outputs(), run, used_machine, needs)

if __name__ == "__main__":
    STAGE.main()
