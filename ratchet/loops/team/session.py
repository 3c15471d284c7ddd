"""From models, a task and a config to an open run, and from a run to its end.

What the stage `team`, the flow `team` and `TeamTrainer` call. Refuses to know how a segment goes (step.py) and how
results are written (publish.py).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import ratchet
from ratchet.core import atomic
from ratchet.core.budget import Budget
from ratchet.core.errors import InputError
from ratchet.core.fingerprint import closure_digest, constraints_digest
from ratchet.core.loop import drive
from ratchet.core.rundir import RunDirectory, open_run, read_identity
from ratchet.loops.team import tasks
from ratchet.loops.team.evaluation import Returns, compared, evaluate
from ratchet.loops.team.generation import Ask, check_room
from ratchet.loops.team.history import found_in
from ratchet.loops.team.mirror import TeamMirror, due
from ratchet.loops.team.models import load_sources
from ratchet.loops.team.parameters import TeamConfig, TeamParams
from ratchet.loops.team.rewards import prompts_of
from ratchet.loops.team.sources import source_digest
from ratchet.loops.team.state import State, state_from
from ratchet.loops.team.step import Setup, Training
from ratchet.loops.team.tasks.protocol import Task
from ratchet.loops.team.team import Team
from ratchet.settings import Settings
from ratchet.tables.findings import Found
from ratchet.train.device import Device, prepare_process, resolve_device
from ratchet.train.interruption import STOPPED_CODE, Interruption
from ratchet.train.mirror import new_identity

LOOP = "team"


@dataclass(frozen=True)
class Session:
    """All that a training is made from."""

    config: TeamConfig
    team: Team
    task: Task
    device: Device

    def identity(self) -> dict[str, Any]:
        """What decides a run's results, by name."""
        content = {name: source_digest(getattr(self.task, name)) for name in ("train", "evaluation")}
        return {
            "params": self.config.defining(),
            "inputs": {**self.team.digest(), **content},
            "code": {"team": code(), **_task_code(self.task)},
            "constraints": constraints_digest(),
            "device": self.device.identity(self.config.dtype),
        }


@dataclass(frozen=True)
class Ending:
    """A run's last committed state, all its rows, and why it ended. `exit_code`: 0 at the last epoch."""

    state: State
    rows: list[dict[str, Any]]
    why: str
    exit_code: int = 0
    evaluation: Mapping[str, Any] | None = None
    found: Sequence[Found] = ()
    """What a person should see in it; looked for at the last epoch."""


@cache
def code() -> str:
    """Hash of all of Ratchet's code that a segment runs, as it is when first asked for."""
    return closure_digest([Path(__file__).with_name("step.py")], Path(ratchet.__file__).parents[1])


def _task_code(task: Task) -> dict[str, str]:
    """Hashes of the task's own code, by part, so that a refusal can say which one has changed."""
    own = {name.strip("_"): value for name, value in vars(task).items() if name not in ("train", "evaluation", "name")}
    return {name: source_digest(value) for name, value in {**own, "task": type(task)}.items()}


def from_params(params: TeamParams, settings: Settings) -> Session:
    """The session of the section `team`. Raises InputError for a model, a task or a file that is not there."""
    return make_session(params, load_sources_of(params, settings), task_of(params), settings)


def load_sources_of(params: TeamParams, settings: Settings) -> Any:
    """The untrained models that `params` name."""
    device = resolve_device(settings.device, settings.threads)
    return load_sources(params.models, params.num_agents, params.dtype, device.torch_name, settings)


def task_of(params: TeamParams) -> Task:
    """The task that `params` name."""
    if params.task is not None:
        return tasks.load_task(params.task, params.seed, tasks.Sizes(params.train_items, params.eval_items))
    assert params.data is not None
    data = params.data
    return tasks.own_task(
        data.reward, Path(data.train), Path(data.evaluation), agents=params.num_agents, formatters=data.formatters,
        external_transition=data.external_transition, passthrough=params.external_prompt_passthrough,
    )  # fmt: skip


def make_session(config: TeamConfig, sources: Any, task: Task, settings: Settings) -> Session:
    """A session of live models, its first prompts checked.

    Raises InputError naming the prompt that does not fit an agent's context, or a task without items.
    """
    device = resolve_device(settings.device, settings.threads)
    prepare_process(device, strict=True)  # the completions of a prompt share its keys and values
    if not task.train:
        raise InputError(task.name, "has no item to train on", "give it some")
    team = Team(sources, config)
    for part, items in (("train", task.train), ("evaluation", task.evaluation)):
        for place, item in enumerate(items):
            _check_prompts(team, task, item, f"{part} item {place}")
    return Session(config, team, task, device)


def _check_prompts(team: Team, task: Task, item: Mapping[str, Any], where: str) -> None:
    for agent, prompt in enumerate(prompts_of(task, item, (), team.agents, where)):
        name = f"agent {agent}, {where}"
        ids = tuple(team.codecs[agent].encode(prompt, name))
        check_room(team.policy(agent), Ask(ids, (), name), team.config.max_new_tokens)


def open_session(session: Session, settings: Settings, run: Path | None = None) -> RunDirectory:
    """The run of `session`, or the one that must continue (`run`, or the settings'). A damaged newest checkpoint gives
    way to the newest good one, which is said."""
    return open_run(
        LOOP, session.identity(), session.config.portable(), runs=settings.runs, resume="auto",
        run=run or settings.resume_run, adopt_code=settings.adopt_code, allow_inexact=settings.allow_inexact,
        keep_last=session.config.keep_last,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Until(Budget):
    """Ends the loop when the last epoch is complete, and after the segment in which a stop was asked for."""

    epochs: int
    interrupted: Callable[[], str]

    def exhausted(self, seq: int, rows: Iterable[Mapping[str, Any]]) -> str | None:
        """As `Budget.exhausted`."""
        if why := self.interrupted():
            return why
        committed = [row for row in rows if row["seq"] < seq]
        if committed and committed[-1]["epoch"] >= self.epochs:
            return f"epoch {self.epochs} is complete"
        return None


class Driver:
    """Drives one run. `checkpoint` commits inside an epoch, on demand."""

    def __init__(
        self, session: Session, run: RunDirectory, settings: Settings, say: Callable[[str], object] = print
    ) -> None:
        self.session, self.run = session, run
        self._say, self._told = say, -1
        self._interruption = Interruption("team: {name}: what is under way is saved; once more to stop at once")
        identity = read_identity(run.path)["identity"]
        self._mirror = TeamMirror(settings, run.path, identity, session.config)
        setup = Setup(
            session.config, session.team, session.task, say, self._listen, self._interrupted, new_identity(settings)
        )  # fmt: skip
        self.training = Training(setup, run)

    def checkpoint(self) -> None:
        """Ask for a checkpoint after the update under way."""
        self.training.ask_for_checkpoint()

    def drive(self) -> Ending:
        """Train from where the run stands to its last epoch, then look at the held-out items once more.

        Raises InputError; what was committed stays.
        """
        session, run, store = self.session, self.run, self.training.store
        budget = _Until(epochs=session.config.num_train_epochs, interrupted=self._interrupted)
        try:
            with self._interruption:
                found = drive({}, self.training.step, store=store, ledger=run.ledger, budget=budget)
                state = state_from(found)
                if seq := store.newest:
                    self.training.settle(seq, state)
                ending = self._ending(state)
        except BaseException as error:
            store.finish()
            run.end("stopped", str(error) or type(error).__name__)
            self._mirror.close(exit_code=1)
            raise
        rise = (ending.evaluation or {}).get("rise")
        if not ending.exit_code:
            self._mirror.tell(ending.found, ending.rows)
        self._mirror.close({"rise": rise["mean"]} if rise else {}, ending.exit_code)
        return ending

    def _ending(self, state: State) -> Ending:
        run, epochs = self.run, self.session.config.num_train_epochs
        if state.epoch > epochs:
            what = f"has completed {state.epoch} epochs, team.num_train_epochs = {epochs}"
            raise InputError(run.path, what, "raise it again, or start anew under another seed")
        where = f"epoch {state.epoch} of {epochs}"
        rows = self.training.rows(state)
        if why := self._interrupted():
            self.training.store.wait()
            run.end("stopped", f"{why} in {where}")
            return Ending(state, rows, why, self._interruption.exit_code or STOPPED_CODE)
        evaluation = self._evaluated(state)
        self.training.store.wait()
        session = self.session
        found = found_in(rows, session.team.agents, session.config.max_new_tokens, evaluation, run.path)
        run.end("finished", where)
        return Ending(state, rows, where, evaluation=evaluation, found=found)

    def _evaluated(self, state: State) -> dict[str, Any] | None:
        """Held-out returns before and after; made once for each number of epochs and kept in the run."""
        untrained: Returns = self.run.ledger.rows()[0]["untrained"]
        if not untrained:
            return None
        path, config = self.run.path / f"evaluation-{state.env_step}.json", self.session.config
        if not path.exists():
            team, task = self.session.team, self.session.task
            found = evaluate(team, task, len(task.evaluation), config.test_samples)
            self.training.store.wait()  # what is evaluated is on disk before its evaluation is
            atomic.write_json(path, found)
        trained: Returns = json.loads(path.read_text(encoding="utf-8"))
        return compared(untrained, trained, config.seed)

    def _interrupted(self) -> str:
        if self._interruption.received:
            return self._interruption.received.name
        return "a stop was asked for" if self.run.stop_file.exists() else ""

    def _listen(self, state: State, rows: Sequence[Mapping[str, Any]]) -> None:
        """Tell the mirror, and the terminal what is new."""
        self._mirror.send(state, rows)
        chosen = due(rows, self.session.config.logging_steps)
        first = self._told if self._told >= 0 else len(chosen) - (len(rows) == 1)  # a resumed run has told the others
        for row in chosen[first:]:
            self._say(told(row))
        self._told = len(chosen)


def told(row: Mapping[str, Any]) -> str:
    """One line on an update."""
    looked = "" if row["eval_reward"] is None else f", held out {row['eval_reward']:.3f}"
    entropy = "–" if row["entropy"] is None else f"{row['entropy']:.2f}"
    rate = row["new_tokens"] / row["seconds"] if row["seconds"] else 0.0
    return (
        f"team: epoch {row['epoch']:.2f}, env step {row['env_step']}: reward {row['reward_mean']:.3f}{looked}, "
        f"entropy {entropy}, {rate:,.0f} tokens/s"
    )


def say_stopped(ending: Ending, run: RunDirectory) -> None:
    """Say how a run that was stopped goes on."""
    state = ending.state
    where = f"epoch {state.epoch}, item {state.position}, env step {state.env_step}"
    print(f"team: {ending.why} at {where}, which is saved; continue with `ratchet resume {run.path}`",
          file=sys.stderr, flush=True)  # fmt: skip
