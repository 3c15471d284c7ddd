"""A research session at toy size: a git repository, packed data of a few sentences, an arena of ten lines, a scripted
proposer, and a laboratory that computes a score from the arena's text instead of training it.
"""

from __future__ import annotations

import ast
import json
import random
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ratchet.core.seeds import derive
from ratchet.loops.research.executor import Experiment, Result, Worker
from ratchet.loops.research.parameters import IterateParams
from ratchet.loops.research.records import Cost, Exhausted, NoProposal, Proposal, Question
from ratchet.loops.research.session import Parts, Published, Request, iterate_and_publish
from ratchet.settings import Settings

ARENA = '''"""A toy arena."""

WIDTH = 4
RATE = 0.1
FAIL = ""


def build(spec):
    a = 1
    b = 2
    c = 3
    return a + b + c
'''
DOCUMENTS = 60


def toy_repository(folder: Path, arena: str = ARENA) -> Path:
    """A project in a git repository with one commit: arena, program, four small files in place of packed data."""
    folder.mkdir(parents=True)
    for name in ("data/pack/train", "data/pack/val", "data/pack/test", "data/tokenizer"):
        (folder / name).mkdir(parents=True)
        (folder / name / "rows").write_text(name)
    (folder / "arena").mkdir()
    (folder / "arena/train.py").write_text(arena, encoding="utf-8")
    (folder / "arena/program.md").write_text("Make it better.\n")
    (folder / ".gitignore").write_text("/runs/\n/data/\n/out/\n")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    when = {"GIT_AUTHOR_DATE": "@1700000000 +0100", "GIT_COMMITTER_DATE": "@1700000000 +0100"}
    git(folder, "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-q", "-m", "first", more=when)
    return folder


def git(folder: Path, *arguments: str, more: dict[str, str] | None = None) -> str:
    """A git command in `folder`."""
    import os

    command = ["git", "-C", str(folder), "-c", "commit.gpgsign=false", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **(more or {})})
    return done.stdout


def params(**over: Any) -> IterateParams:
    """Small: two noise seeds, three experiments."""
    told = {
        "tag": "toy",
        "experiments": 3,
        "noise_seeds": 3,
        "train": {"horizon": {"unit": "steps", "value": 4}, "dtype": "float32"},
    }
    return IterateParams.model_validate({**told, **over})


def request(project: Path, **over: Any) -> Request:
    """The session of `project` under `params`."""
    pack = project / "data/pack"
    return Request(
        params(**over), pack / "train", pack / "val", pack / "test", project / "data/tokenizer",
        project / "arena/train.py", project / "arena/program.md", project,
    )  # fmt: skip


def settings(project: Path, **over: Any) -> Settings:
    """CPU, one thread, processes."""
    usual = {"device": "cpu", "threads": 1, "wandb": "disabled", "runs": project / "runs", "sandbox": "process"}
    return Settings(**{**usual, **over})


def edit(old: str, new: str) -> Callable[[Question], str]:
    """A proposal that replaces `old` by `new` in the incumbent."""

    def apply(question: Question) -> str:
        assert old in question.source, (old, question.source)
        return question.source.replace(old, new)

    return apply


@dataclass
class Scripted:
    """Proposes a list of (description, source or edit, money) in order of experiments; keeps the questions it got."""

    script: Sequence[tuple[str, str | Callable[[Question], str]]]
    money: float = 0.5
    name: str = "scripted"
    questions: list[Question] = field(default_factory=list)

    def propose(self, question: Question) -> Proposal:
        """The next of the script, by how many trials there are: the same question gets the same answer."""
        self.questions.append(question)
        place = len(question.trials) - 1 + len(question.pending)
        if place >= len(self.script):
            raise Exhausted("script", "the script is at its end", "write more")
        description, change = self.script[place]
        if change == "none":
            raise NoProposal("script", description, "nothing", Cost(1, 10, self.money))
        source = change if isinstance(change, str) else change(question)
        return Proposal(source, description, self.name, Cost(1, 10, self.money))


def constants(source: str) -> dict[str, Any]:
    """The arena's top-level constants."""
    found: dict[str, Any] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = ast.literal_eval(node.value)
    return found


def formula(job: Experiment) -> float:
    """The score: wider is better, plus a little noise of seed and arena."""
    told = constants(job.source)
    noise = random.Random(derive(1, job.train["seed"], str(sorted(told.items())))).gauss(0, 0.001)
    return 2.0 - 0.05 * told["WIDTH"] + noise


def fake_laboratory(job: Experiment, worker: Worker) -> Result:
    """Scores `job` by `formula`, leaves the files that a real experiment leaves. FAIL = "crash" is a crash."""
    told = constants(job.source)
    if told["FAIL"]:
        return Result(val_bpb=None, reason=f"RuntimeError: {told['FAIL']}", isolation="weak", said=("it said so",))
    (job.folder / "trained/model").mkdir(parents=True, exist_ok=True)
    (job.folder / "run.log").write_text("trained\n")
    (job.folder / "trained/history.tsv").write_text("step\tloss\n1\t2.0\n")
    score = formula(job)
    rng = np.random.default_rng(7)
    sizes = rng.integers(50, 400, DOCUMENTS)
    nats = sizes * np.log(2) * score + np.random.default_rng(derive(2, job.key)).normal(0, 0.02, DOCUMENTS)
    nats *= sizes.sum() * np.log(2) * score / nats.sum()
    table = pd.DataFrame({"document": np.arange(DOCUMENTS), "tokens": sizes // 4, "bytes": sizes, "nats": nats})
    name = f"judged-{job.split.name}.parquet"
    table.to_parquet(job.folder / name)
    return Result(
        val_bpb=score, reason="", isolation="weak", documents=name, steps=4, tokens=4096, params_m=told["WIDTH"] / 10,
        seconds=1.5, memory_gb=0.25, curve=((1, 2.0), (4, 1.5)), said=("done",),
    )  # fmt: skip


def session(
    project: Path, by: Any, /, *, where: Path | None = None, laboratory: Any = fake_laboratory,
    listeners: Sequence[Any] = (), here: Settings | None = None, **over: Any,
) -> dict[str, Any]:  # fmt: skip
    """Run a whole session here, proposed `by`; its metrics. Outputs go to `where` (default: `project`/out)."""
    out = where or project / "out"
    return iterate_and_publish(
        request(project, **over), Published(out / "iterate", out / "iterate.json"), here or settings(project),
        Parts(by, laboratory, tuple(listeners)),
    )  # fmt: skip


MEASURED = ("seconds", "memory_gb", "cost")


def rows(out: Path, *, without: Sequence[str] = MEASURED) -> list[dict[str, str]]:
    """results.tsv as texts, without the columns that time and prices move."""
    lines = [line.split("\t") for line in (out / "iterate/results.tsv").read_text().splitlines()]
    return [
        {name: cell for name, cell in zip(lines[0], line, strict=True) if name not in without} for line in lines[1:]
    ]


def read_metrics(out: Path) -> dict[str, Any]:
    """metrics/iterate.json."""
    return json.loads((out / "iterate.json").read_text())
