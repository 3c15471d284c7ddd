"""From parameters to an open run, and from a run to its end: who answers, what a run's identity is, how it is driven.

Refuses to know how a step is made (step.py) and how results are published (publish.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import ratchet
from ratchet.core.budget import Budget
from ratchet.core.errors import InfrastructureError
from ratchet.core.fingerprint import closure_digest, constraints_digest
from ratchet.core.loop import Outcome, drive
from ratchet.core.rundir import RunDirectory, open_run
from ratchet.llm.client import BudgetSpent, Provider
from ratchet.llm.endpoint import Live, open_client
from ratchet.llm.recorded import Recorded
from ratchet.loops.skill.builtin import BuiltinOptimizer
from ratchet.loops.skill.history import without_time
from ratchet.loops.skill.horizon import Horizon
from ratchet.loops.skill.models import ModelOptimizer, ModelTarget
from ratchet.loops.skill.parameters import SkillParams
from ratchet.loops.skill.readable import Readable
from ratchet.loops.skill.records import Optimizer, Split, Target, Task, Usage
from ratchet.loops.skill.rollout import Rollout, rollout
from ratchet.loops.skill.state import State, initial, state_from, text_hash
from ratchet.loops.skill.step import Setup, Stepped, baseline, train_step
from ratchet.loops.skill.tasks import TaskSet, inside, load
from ratchet.loops.skill.update import parse
from ratchet.settings import Settings

LOOP = "skill"


@dataclass(frozen=True)
class Request:
    """What is to be trained: parameters, tasks, the seed document's text."""

    params: SkillParams
    tasks: TaskSet
    seed_skill: str

    @property
    def train(self) -> Sequence[Task]:
        """The training tasks that are used."""
        return self.tasks[Split.TRAIN][: self.params.limit][: self.params.train_size]

    @property
    def val(self) -> Sequence[Task]:
        """The tasks that the gate sees."""
        return self.tasks[Split.VAL][: self.params.limit]

    @property
    def test(self) -> Sequence[Task]:
        """The tasks that are looked at once."""
        return self.tasks[Split.TEST][: self.params.limit]

    @property
    def sizes(self) -> dict[str, int]:
        """How many tasks of each split are used."""
        return {"train": len(self.train), "val": len(self.val), "test": len(self.test)}

    @property
    def horizon(self) -> Horizon:
        """How long training lasts."""
        p = self.params
        return Horizon(len(self.train), p.batch_size * p.accumulation, p.num_epochs, p.extend_epochs)


@dataclass(frozen=True)
class Players:
    """Agent and optimizer, and the records of their calls where they have one."""

    target: Target
    optimizer: Optimizer
    records: Mapping[str, Recorded]


@dataclass(frozen=True)
class Ending:
    """A run's last committed state and why it ended. `finished`: it stands at its horizon or at its extension's end."""

    state: State
    finished: bool
    why: str
    asked: bool = False
    """Somebody asked it to stop: nothing is published."""


def read_request(params: SkillParams, folder: Path = Path("skills")) -> Request:
    """The request that `params` make. Raises InputError naming what is wrong with tasks or seed document."""
    text = ""
    if params.skill_init is not None:
        text = parse(inside(Path(params.skill_init), folder).read_text(encoding="utf-8")).text()
    return Request(params, load(params.tasks, folder), text)


@cache
def code() -> str:
    """Hash of all of Ratchet's code that the loop runs, prompts included, as it is when first asked for."""
    return closure_digest([Path(__file__)], Path(ratchet.__file__).parents[1])


def identity(request: Request, settings: Settings) -> dict[str, Any]:
    """What decides a run's results, by name."""
    tasks = request.tasks
    identity: dict[str, Any] = {
        "params": request.params.defining(),
        "inputs": {"tasks": tasks.sha256, "scorer": tasks.code, "skill": text_hash(request.seed_skill)},
        "code": {"skill": code()},
        "constraints": constraints_digest(),
    }
    if request.params.target.embedded:
        from ratchet.llm import smollm2
        from ratchet.train.device import resolve_device

        device = resolve_device("cpu", settings.threads)
        identity |= {"model": smollm2.sha256(), "device": device.identity("float32")}
    return identity


def open_session(request: Request, settings: Settings) -> RunDirectory:
    """The run of `request`, or the one that the settings say must continue."""
    return open_run(
        LOOP,
        identity(request, settings),
        request.params.portable(),
        runs=settings.runs,
        resume=settings.resume,
        run=settings.resume_run,
        adopt_code=settings.adopt_code,
        allow_inexact=settings.allow_inexact,
    )


def players(params: SkillParams, folder: Path, settings: Settings) -> Players:
    """Agent and optimizer, their calls recorded below `folder`. Nothing is asked yet."""
    records: dict[str, Recorded] = {}
    if params.target.embedded:
        target = local_target(params, settings)
    else:
        records["target"] = open_client(params.target, folder / "target.jsonl")
        target = ModelTarget(records["target"], params.target, params.workers)
    optimizer: Optimizer = BuiltinOptimizer()
    if not params.optimizer.embedded:
        optimizer, records["optimizer"] = recorded_optimizer(params, folder / "optimizer.jsonl", Live(params.optimizer))
    return Players(target, optimizer, records)


def recorded_optimizer(params: SkillParams, record: Path, provider: Provider) -> tuple[Optimizer, Recorded]:
    """The optimizer behind `provider`: a reply that cannot be read is asked for again and never recorded."""
    readable = Readable(provider)
    recorded = open_client(params.optimizer, record, provider=readable)
    return ModelOptimizer(recorded, readable, params.optimizer), recorded


def local_target(params: SkillParams, settings: Settings) -> Target:
    """The embedded agent."""
    import torch

    from ratchet.loops.skill.local import LocalTarget
    from ratchet.train.device import resolve_device

    torch.set_num_threads(resolve_device("cpu", settings.threads).threads)
    role = params.target
    return LocalTarget(settings.downloads, batch_items=role.batch_items, max_new_tokens=role.max_new_tokens)


def setup(request: Request, who: Players) -> Setup:
    """What a step needs besides the state."""
    return Setup(request.params, request.horizon, request.train, request.val, who.target, who.optimizer,
                 request.tasks.score)  # fmt: skip


def train(request: Request, who: Players, run: RunDirectory, say: Callable[[str], object] = print) -> Ending:
    """Drive `run` from where it stands to its stop, its horizon or its extension's end.

    Raises InfrastructureError when agent or optimizer fails for good: the step under way counts for nothing, all
    replies so far are kept, and the same run goes on from there.
    """
    made, params = setup(request, who), request.params
    last = made.horizon.last if params.stop_at is None else min(params.stop_at, made.horizon.last)
    budget = Budget(steps=1 + last, stop_file=run.stop_file)

    def step(seq: int, value: dict[str, Any]) -> Outcome:
        state = state_from(value)
        stepped = train_step(made, state, history(run, seq)) if seq else baseline(made, state)
        say(told(stepped, made.horizon))
        return _outcome(stepped)

    why = ""
    try:
        drive(initial(request.seed_skill).public(), step, store=run.store, ledger=run.ledger, budget=budget)
    except BudgetSpent as spent:
        why = str(spent)
        print(why, file=sys.stderr, flush=True)
    except InfrastructureError as error:
        run.end("stopped", str(error))
        raise
    loaded = run.store.load()
    state = state_from(loaded[1]) if loaded else initial(request.seed_skill)
    return _ending(state, made.horizon, run, why, last)


def _ending(state: State, horizon: Horizon, run: RunDirectory, why: str, last: int) -> Ending:
    where = f"step {state.step} of {horizon.last}"
    if state.baseline is not None and state.step >= max(horizon.steps, last):
        run.end("finished", where)
        return Ending(state, finished=True, why=where)
    asked = run.stop_file.exists()
    why = why or (f"a stop was asked for after {where}" if asked else f"skill.stop_at: {where}")
    run.end("stopped", why)
    return Ending(state, finished=False, why=why, asked=asked)


def history(run: RunDirectory, before: int) -> list[dict[str, Any]]:
    """The committed records of training steps, each with its edits, time left out: nothing of a clock may reach a
    request."""
    rows = [row for row in run.ledger.rows() if 0 < row["seq"] < before]
    return [{**without_time(row["record"]), "edits": row["edits"]} for row in rows]


def _outcome(stepped: Stepped) -> Outcome:
    used, state = stepped.used, stepped.state
    row = {
        "seconds": stepped.record["wall_time_s"],
        "calls": used.calls,
        "tokens": used.tokens,
        "money": used.money,
        "record": stepped.record,
        "edits": stepped.edits,
        "skill": state.current.text,
    }
    texts = {"skill.md": state.current.text, "best_skill.md": state.best.text}
    blobs = {name: _writer(text) for name, text in texts.items()}
    return Outcome(state.public(), row, blobs)


def _writer(text: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_text(text, encoding="utf-8")

    return write


def told(stepped: Stepped, horizon: Horizon) -> str:
    """One line on a step."""
    row, state = stepped.record, stepped.state
    assert state.baseline is not None
    if row["step"] == 0:
        return f"skill: seed document: val hard {state.baseline.hard:.3f}, contains {state.baseline.contains:.3f}"
    applied = row["edit_apply_summary"]
    return (
        f"skill: step {row['step']}/{horizon.last} (epoch {row['epoch']}): train {row['rollout_hard']:.3f}, "
        f"{applied['applied']} of {applied['total']} edits applied, val {row['candidate_gate_score']:.3f} "
        f"→ {row['action']} ({row['gate_reason']}); best {row['best_score']:.3f}; "
        f"{row['cumulative']['prompt_tokens'] + row['cumulative']['completion_tokens']:,} tokens"
    )


@dataclass(frozen=True)
class Tested:
    """The test split under the seed document and under the best one."""

    seed: Rollout
    best: Rollout

    @property
    def usage(self) -> Usage:
        """What it took."""
        return self.seed.usage + self.best.usage


def look_at_test(request: Request, who: Players, best: str) -> Tested:
    """The one look at the test split. Raises InfrastructureError; what was answered is kept."""
    texts = (request.seed_skill, best)
    return Tested(*(rollout(text, request.test, who.target, request.tasks.score) for text in texts))
