"""A made-up team training whose reward rises, without a model; the files are those of the stage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ratchet.core import atomic

ALERTS = [{"severity": "warning", "what": "the rise is <b>made up</b>", "evidence": "64 of 64", "do": "laugh"}]
AGENT = {"reward": 0.4, "loss": 0.0, "grad_norm": 1.0, "entropy": 2.0, "kl": None, "completion_length": 5.0}


def rows(count: int = 40, agents: int = 2, *, kl: bool = False) -> list[dict[str, Any]]:
    """A training whose reward rises, with a look at held-out items in every tenth row."""
    made: list[dict[str, Any]] = []
    for n in range(count):
        reward = 0.2 + 0.5 * n / max(1, count - 1)
        looked = n % 10 == 0
        made.append(
            {
                "seq": n, "epoch": n / 20, "env_step": 8 * n + 8, "reward_mean": reward, "return_mean": reward,
                "advantage_std": 0.2, "loss": 0.01, "grad_norm": 1.0, "kl": None, "entropy": 2.0,
                "skipped_updates": n % 2, "eval_reward": reward if looked else None,
                "eval_reward_low": reward - 0.1 if looked else None,
                "eval_reward_high": reward + 0.1 if looked else None, "tokens": 100 * n + 100,
            }
        )  # fmt: skip
        for agent in range(agents):
            each = {**AGENT, "completion_length": 4.0 + agent + 0.1 * n, "entropy": 2.0 - 0.02 * n - 0.1 * agent}
            each["kl"] = 0.01 * n if kl else None
            made[-1] |= {f"agent{agent}_{name}": value for name, value in each.items()}
    return made


def estimate(mean: float) -> dict[str, float]:
    return {"mean": mean, "low": mean - 0.05, "high": mean + 0.05}


def held_out(rise: float) -> dict[str, Any]:
    return {"items": 64, "samples": 4, "untrained": estimate(0.2), "trained": estimate(0.2 + rise),
            "rise": estimate(rise)}  # fmt: skip


def sample(epoch: int, text: str = " Paris") -> dict[str, Any]:
    return {"epoch": epoch, "env_step": 8, "item": 3, "turn": 0, "prompts": ["Country: France", "Capital:"],
            "completions": [text, ""], "reward": 0.4}  # fmt: skip


def metrics(count: int) -> dict[str, Any]:
    """metrics/team.json of a training of so many updates."""
    return {
        "task": "helper", "epochs": 2, "env_steps": 8 * count, "updates": count, "skipped_updates": count // 2,
        "tokens": 100 * count, "train_reward": {"first_epoch": 0.3, "last_epoch": 0.6}, "held_out": held_out(0.3),
    }  # fmt: skip


def make_team(root: Path, count: int = 40, text: str = " Paris") -> None:
    """Write data/team, its timing and metrics/team.json below `root`."""
    folder = root / "data/team"
    folder.mkdir(parents=True)
    atomic.write_json(folder / "history.json", rows(count))
    params = {"num_train_epochs": 2, "max_new_tokens": 8}
    atomic.write_json(folder / "summary.json", {"params": params, "alerts": ALERTS})
    lines = [json.dumps(sample(epoch, text), ensure_ascii=False) + "\n" for epoch in (1, 2)]
    (folder / "samples.jsonl").write_text("".join(lines), encoding="utf-8")
    atomic.write_json(root / "data/team-timing.json", timing(count))
    (root / "metrics").mkdir(exist_ok=True)
    (root / "metrics/team.json").write_text(json.dumps(metrics(count), indent=2) + "\n", encoding="utf-8")


def timing(count: int) -> list[dict[str, Any]]:
    """What data/team-timing.json holds; a later process went on with the second update."""
    return [
        {"seq": n, "env_step": 8 * n + 8, "seconds": 1.0, "tokens_per_s": 9.0, "resumed": n == 1} for n in range(count)
    ]
