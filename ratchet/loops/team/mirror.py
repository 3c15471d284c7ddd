"""A team training in Weights & Biases: one point an update, over env steps, in one run however often it resumes.

The fsynced rows are the truth and this repeats them (train/mirror.py says how failures are met). Refuses to know agents
beyond their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ratchet.core.checkpoint import Store
from ratchet.core.errors import InputError
from ratchet.core.ledger import Ledger
from ratchet.core.rundir import read_identity
from ratchet.loops.team.parameters import TeamConfig
from ratchet.loops.team.state import UPDATES_FILE, State, state_from
from ratchet.settings import Settings
from ratchet.tables.findings import Found
from ratchet.tables.team_findings import in_team_timing
from ratchet.train.mirror import Mirror, Sent

SHARED = (
    "epoch", "reward_mean", "return_mean", "advantage_std", "loss", "grad_norm", "kl", "entropy", "skipped_updates",
    "eval_reward", "eval_reward_low", "eval_reward_high", "tokens", "tokens_per_s",
)  # fmt: skip
OF_AN_AGENT = ("reward", "loss", "grad_norm", "entropy", "kl", "completion_length")


def columns(agents: int) -> tuple[str, ...]:
    """Every metric of a row, by its name in the history."""
    return (*SHARED, *(f"agent{agent}_{name}" for agent in range(agents) for name in OF_AN_AGENT))


class TeamMirror:
    """Sends the rows that are due. `team/step` is the env step, which all else is drawn over."""

    def __init__(self, settings: Settings, folder: Path, identity: Mapping[str, Any], config: TeamConfig) -> None:
        sent = Sent("team", columns(config.num_agents), "training")
        self._mirror = Mirror(settings.wandb, folder, identity, sent)
        self._config = config

    def send(self, state: State, rows: Iterable[Mapping[str, Any]]) -> None:
        """Send those of `rows` that were not sent; `state` knows the W&B run."""
        chosen = due(rows, self._config.logging_steps)
        self._mirror.send(state.wandb, [with_rate(row) | {"step": row["env_step"]} for row in chosen])

    def tell(self, found: Iterable[Found], rows: Iterable[Mapping[str, Any]]) -> None:
        """Show what a person should see in the whole training: `found`, and what there is of time in its `rows`."""
        self._mirror.tell(lambda: [*found, *in_team_timing(map(with_rate, rows))])

    def close(self, summary: Mapping[str, Any] | None = None, exit_code: int = 0) -> None:
        """End this process' part of the W&B run."""
        if summary:
            self._mirror.summarise({f"team/{name}": value for name, value in summary.items()})
        self._mirror.close(exit_code)


def due(rows: Iterable[Mapping[str, Any]], logging_steps: int) -> list[Mapping[str, Any]]:
    """The rows that are told: the first, each that is `logging_steps` env steps after the last told one, and every one
    with a look at held-out items. A function of the rows alone, so a resume tells the same ones."""
    told: list[Mapping[str, Any]] = []
    last: int | None = None
    for row in rows:
        if last is None or row["env_step"] - last >= logging_steps:
            last = row["env_step"]
        elif row["eval_reward"] is None:
            continue
        told.append(row)
    return told


def with_rate(row: Mapping[str, Any]) -> dict[str, Any]:
    """`row` with tokens per second, of generating and learning, in its update."""
    rate = row["new_tokens"] / row["seconds"] if row["seconds"] else None
    return {**row, "tokens_per_s": rate}


def mirror_again(run: Path, settings: Settings) -> int:
    """Send what the W&B run of the training in `run` lacks, from its committed rows; returns how many rows it has.

    Raises InputError when `run` has no committed checkpoint, or trained without a W&B run.
    """
    store = Store(run)
    head = store.head()
    if head is None:
        raise InputError(run, "has no committed checkpoint", "run it first")
    state = state_from(store.verify(*head, hashes=False)["state"])
    if state.wandb is None:
        raise InputError(run, "was trained with W&B disabled", "set RATCHET_WANDB and go on with it")
    identity = read_identity(run)
    values = {**identity["identity"]["params"], **identity["portable"]}
    config = TeamConfig.model_validate({name: values[name] for name in TeamConfig.model_fields if name in values})
    rows = Ledger(run / UPDATES_FILE).rows()[: state.updates]
    mirror = TeamMirror(settings, run, identity["identity"], config)
    mirror.send(state, rows)
    mirror.close()
    return len(due(rows, config.logging_steps))
