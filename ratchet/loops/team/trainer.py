"""`TeamTrainer`: the loop for a script of one's own, with models, datasets and functions in memory, as the published
trainer has it.

The same runs, checkpoints and rows as the stage `team` makes. Refuses to know how a segment goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ratchet.core.checkpoint import Store, read_metadata
from ratchet.core.errors import InputError
from ratchet.core.rundir import read_identity
from ratchet.loops.team import session as sessions
from ratchet.loops.team.models import load_sources
from ratchet.loops.team.parameters import SECTION, TeamConfig
from ratchet.loops.team.publish import save_agents
from ratchet.loops.team.session import Driver, Ending, Session
from ratchet.loops.team.tasks.own import CallableTask, Formatter, TransitionTask
from ratchet.loops.team.tasks.protocol import Task
from ratchet.loops.team.team import Source
from ratchet.params import validate
from ratchet.settings import Settings, settings
from ratchet.train.device import resolve_device

Items = Iterable[Mapping[str, Any]]


class TeamTrainer:
    """Agents that learn from `reward`, a function of one list of completions per agent that gives a list of numbers.

    `model`: a name or folder, or a live model with `tokenizer`, for all agents; `agents`: one of these per agent.
    Formatters and `external_transition` are the published ones. A run is found again by what defines it, so the same
    script started again goes on where it was; `resume` insists on one run.
    """

    def __init__(
        self,
        config: TeamConfig | None = None,
        *,
        reward: Callable[..., Sequence[float]],
        train_dataset: Items,
        eval_dataset: Items = (),
        model: Any = None,
        agents: Sequence[Any] | None = None,
        tokenizer: Any = None,
        formatters: Formatter | Sequence[Formatter] | None = None,
        external_transition: Callable[..., Any] | None = None,
        reward_processor: Callable[[float], float] | None = None,
        here: Settings | None = None,
    ) -> None:
        self.config = config or TeamConfig.model_validate({})
        self.here = here or settings()
        sources = _sources(self.config, model, agents, tokenizer, self.here)
        if self.config.num_turns > 1 and external_transition is None:
            what = f"num_turns is {self.config.num_turns}, but there is no external_transition"
            raise InputError("TeamTrainer", what, "give one, or set num_turns to 1")
        pieces: dict[str, Any] = {
            "agents": len(sources), "formatters": formatters, "reward_processor": reward_processor,
        }  # fmt: skip
        items = list(train_dataset), list(eval_dataset)
        if external_transition is None:
            task: Task = CallableTask(reward, *items, **pieces)
        else:
            passthrough = self.config.external_prompt_passthrough
            task = TransitionTask(reward, *items, transition=external_transition, passthrough=passthrough, **pieces)
        self.session: Session = sessions.make_session(self.config, sources, task, self.here)
        self.path: Path | None = None
        self._run: Path | None = None
        self._driver: Driver | None = None

    def train(self) -> Ending:
        """Train to the last epoch, from where the run stands. Raises InputError; what was committed stays."""
        with sessions.open_session(self.session, self.here, self._run) as run:
            self.path = run.path
            self._driver = Driver(self.session, run, self.here)
            try:
                return self._driver.drive()
            finally:
                self._driver = None

    def save_checkpoint(self) -> None:
        """Commit after the update under way, also inside an epoch. To be called while `train` runs: from a reward, a
        formatter, a transition or another thread. Raises InputError when nothing runs: then all is committed already.
        """
        if self._driver is None:
            raise InputError("save_checkpoint", "nothing is training", "the newest checkpoint is already on disk")
        self._driver.checkpoint()

    def save_model(self, folder: str | Path) -> None:
        """Write the agents as they are now to `folder`, which must not exist."""
        save_agents(self.session.team, Path(folder))

    @classmethod
    def resume(cls, path: str | Path, *, config: TeamConfig | None = None, changes: Mapping[str, Any] | None = None,
               **pieces: Any) -> TeamTrainer:  # fmt: skip
        """A trainer whose `train` goes on with the run at `path` (its folder, or its newest checkpoint) and no other.

        `pieces`: models, datasets and functions, as for a new one. The config is the run's, with `changes` (such as
        `{"num_train_epochs": 4}`) laid over it, or `config`. `train` raises InputError naming what differs from the
        run, unless it may (num_train_epochs, intervals).
        """
        run = run_of(Path(path))
        if config is None:
            known = read_identity(run)
            values = {**known["identity"]["params"], **known["portable"], **(changes or {})}
            config = validate(values, SECTION, TeamConfig, run / "identity.json")
        made = cls(config, **pieces)
        made._run = run
        return made


def _sources(config: TeamConfig, model: Any, agents: Sequence[Any] | None, tokenizer: Any, here: Settings) -> list[Any]:
    """One source per agent. Raises InputError when their number or the tokenizers do not fit."""
    if (model is None) == (agents is None):
        raise InputError("TeamTrainer", "needs model or agents, not both", "name one model for all, or one per agent")
    given = [model] * config.num_agents if agents is None else list(agents)
    if len(given) != config.num_agents:
        what = f"{len(given)} agents, but num_agents is {config.num_agents}"
        raise InputError("TeamTrainer", what, "make them the same")
    if all(isinstance(each, str) for each in given):
        device = resolve_device(here.device, here.threads).torch_name
        return list(load_sources(given, len(given), config.dtype, device, here))
    tokenizers = list(tokenizer) if isinstance(tokenizer, list | tuple) else [tokenizer] * len(given)
    if len(tokenizers) != len(given) or None in tokenizers:
        raise InputError("TeamTrainer", "live models need their tokenizer", "give `tokenizer`: one, or one per agent")
    return [Source(live, codec) for live, codec in zip(given, tokenizers, strict=True)]


def run_of(path: Path) -> Path:
    """The run directory that `path` is, or that its checkpoint belongs to. Raises InputError when it is neither, or
    when a newer checkpoint was taken: only the newest can be gone on from."""
    path = path.resolve()
    if (path / "identity.json").is_file():
        return path
    metadata, run = read_metadata(path), path.parent.parent
    read_identity(run)
    head = Store(run).head()
    if head is not None and metadata["seq"] != head[0]:
        what = f"is checkpoint {metadata['seq']} of {run}, which has gone on to {head[0]}"
        raise InputError(path, what, "resume the run itself, or start another one")
    return run


def read_checkpoint_metadata(path: str | Path) -> dict[str, Any]:
    """What a checkpoint is, without reading its weights: format, run, sequence, epochs, env steps, W&B run.

    Raises InputError when it is none, or when a bit of what it says was changed.
    """
    metadata = read_metadata(Path(path))
    state = metadata["state"]
    return {
        "version": metadata["format"],
        "trainer_class": TeamTrainer.__name__,
        "run_id": metadata["fingerprint"],
        "sequence": metadata["seq"],
        "epoch": state["epoch"],
        "position": state["position"],
        "env_step": state["env_step"],
        "wandb": metadata["labels"].get("wandb"),
    }
