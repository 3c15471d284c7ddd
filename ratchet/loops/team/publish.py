"""A run's results as files: history, samples, summary, metrics, the trained agents; and apart from them, its time.

Refuses to know how they came about, and writes nothing half.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from ratchet.core import atomic
from ratchet.loops.team.history import history
from ratchet.loops.team.mirror import with_rate
from ratchet.loops.team.parameters import TeamConfig
from ratchet.loops.team.session import Ending, Session
from ratchet.loops.team.team import Team
from ratchet.tables import findings
from ratchet.tables.findings import Found
from ratchet.tables.team_findings import in_team_timing


@dataclass(frozen=True)
class Published:
    """What a run comes to: rows as the history's schema has them, texts to read, and what they amount to."""

    history: list[dict[str, Any]]
    samples: list[dict[str, Any]]
    timing: list[dict[str, Any]]
    metrics: dict[str, Any]
    summary: dict[str, Any]
    found: Sequence[Found]
    """What a person should see in all of that."""


def gather(session: Session, ending: Ending) -> Published:
    """The results of `ending`."""
    config, state, rows = session.config, ending.state, ending.rows
    metrics = {
        "task": session.task.name,
        "epochs": state.epoch,
        "env_steps": state.env_step,
        "updates": state.updates,
        "skipped_updates": sum(row["skipped_updates"] for row in rows),
        "tokens": state.tokens,
        "train_reward": {"first_epoch": _reward(rows, 1), "last_epoch": _reward(rows, state.epoch)},
        "held_out": ending.evaluation,
    }
    summary = {
        **metrics,
        "ended": ending.why,
        "alerts": findings.plain(ending.found),
        "starts": session.team.digest(),
        "params": config.model_dump(mode="json"),
    }
    samples = [sample for row in rows for sample in row["samples"]]
    told = history(rows, session.team.agents)
    timing = [_timing(row) for row in rows]
    return Published(told, samples, timing, metrics, summary, [*ending.found, *in_team_timing(timing)])


def _reward(rows: Sequence[Mapping[str, Any]], epoch: int) -> float | None:
    """The mean reward of the updates in epoch number `epoch`, counted from 1."""
    found = [row["reward_mean"] for row in rows if epoch - 1 < row["epoch"] <= epoch]
    return math.fsum(found) / len(found) if found else None


def _timing(row: Mapping[str, Any]) -> dict[str, Any]:
    """The time of one row, and whether a later process went on with it."""
    kept = ("seq", "env_step", "seconds", "tokens_per_s", "resumed")
    return {name: value for name, value in with_rate(row).items() if name in kept}


def write(published: Published, folder: Path, team: Team | None) -> None:
    """Write everything but time to `folder`, whole or not at all; with the weights when `team` is given."""
    with atomic.output_folder(folder) as temp:
        atomic.write_json(temp / "history.json", published.history)
        atomic.write_json(temp / "summary.json", published.summary)
        lines = [json.dumps(sample, ensure_ascii=False) + "\n" for sample in published.samples]
        (temp / "samples.jsonl").write_text("".join(lines), encoding="utf-8")
        if team is not None:
            save_agents(team, temp / "agents")


def save_agents(team: Team, folder: Path) -> None:
    """One folder per model: as `from_pretrained` reads it, or its adapters where only those were trained."""
    for policy, live in enumerate(team.policies):
        speakers = team.speakers(policy)
        place = folder / f"agent-{'-'.join(map(str, speakers))}"
        place.mkdir(parents=True)
        model: Any = getattr(live, "model", None)
        if team.config.lora is not None or not hasattr(model, "save_pretrained"):
            save_file({name: tensor.contiguous() for name, tensor in team.weights(policy).items()},
                      place / "trained.safetensors")  # fmt: skip
            continue
        model.save_pretrained(place)
        team.codecs[speakers[0]].tokenizer.save_pretrained(place)


def sentence(published: Published, config: TeamConfig) -> str:
    """The result on one line."""
    told = published.metrics
    where = f"team: {told['task']}, {told['epochs']} epochs, {told['env_steps']:,} env steps"
    if told["held_out"] is None:
        return f"{where}: nothing was held out"
    found = told["held_out"]
    rise = found["rise"]
    return (
        f"{where}: held-out reward {found['untrained']['mean']:.3f} → {found['trained']['mean']:.3f}, rise "
        f"{rise['mean']:+.3f} (95 %: {rise['low']:+.3f} to {rise['high']:+.3f}; {found['items']} items × "
        f"{found['samples']})"
    )
