"""Questions to a proposer, made up: a toy arena, experiments with its knobs set, everything else plain."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from ratchet.loops.research import guard
from ratchet.loops.research.program import Objective, Program
from ratchet.loops.research.records import Question, Status, Trial
from ratchet.train.arena import with_knobs

ARENA = '''"""A toy arena."""

from typing import Annotated

WIDTH: Annotated[int, 1, 64] = 8
RATE: Annotated[float, 0.001, 1.0, "log"] = 0.1
SHAPE: Annotated[str, ("round", "square")] = "round"


def build(spec):
    # the model
    return WIDTH * RATE
'''


def sha(source: str) -> str:
    return hashlib.sha1(source.encode()).hexdigest()


class Past:
    """Experiments in order, and where their sources are."""

    def __init__(self) -> None:
        self.trials: list[Trial] = []
        self.sources: dict[str, str] = {}

    def add(self, source: str, val_bpb: float | None, status: Status = Status.DISCARD, **more: Any) -> Trial:
        commit = sha(source)
        self.sources[commit] = source
        fields: dict[str, Any] = {
            "commit": commit,
            "val_bpb": val_bpb,
            "memory_gb": 1.0,
            "status": status,
            "description": "something",
            "parent": self.trials[0].commit if self.trials else "",
            "arena_sha": "" if guard.refusal(source) else guard.arena_sha(source),
            "seed": 1,
            "steps": 10,
            "tokens": 100,
            "seconds": 1.0,
            "params_m": 0.1,
            "delta": None,
            "noise": 0.01,
            "diff_lines": 1,
            "reason": "said by the gate",
            "proposer": "search",
            "isolation": "weak",
            "cost": 0.0,
        }
        self.trials.append(Trial(**(fields | more)))
        return self.trials[-1]

    def with_baseline(self, source: str = ARENA, val_bpb: float = 2.0) -> Past:
        self.add(source, val_bpb, Status.KEEP, description="baseline")
        return self

    def knobs(self, val_bpb: float | None, status: Status = Status.DISCARD, **values: Any) -> Trial:
        return self.add(with_knobs(ARENA, values), val_bpb, status)

    def question(self, folder: Path, **more: Any) -> Question:
        fields: dict[str, Any] = {
            "seq": len(self.trials),
            "slot": 0,
            "seed": 7,
            "program": Program("Lower is better.\n", Objective()),
            "source": ARENA,
            "commit": sha(ARENA),
            "val_bpb": 2.0,
            "trials": tuple(self.trials),
            "source_of": self.sources.__getitem__,
            "folder": folder,
        }
        return Question(**(fields | more))
