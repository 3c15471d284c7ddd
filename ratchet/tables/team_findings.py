"""What a person should see in the history of a team training and in its held-out items.

Pure functions of tables; refuses to know files, and who made them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from ratchet.tables.findings import Found, Severity, array, slowing, spike_sentence, spikes, thirds
from ratchet.tables.team_history import agents_of

FEW_ROWS = 4
"""Below so many rows nothing has a trend."""
NEAR_CAP, LONGER, TOGETHER = 0.9, 1.2, 0.5
"""Length of the last third against the cap and against the first third, and its correlation with the reward, from which
on a reward is taken to be bought with length."""
COLLAPSED = 0.1
"""Entropy of the last third against the first, at most."""
SILENT_TOKENS, SILENT_SHARE = 1.0, 0.5
GRADIENT_SPIKE = 10.0
NOTHING_LEARNT = 0.9
"""Share of the rows of the last third whose answers to a prompt all earned the same."""
CLAIMED = 0.02
"""A rise of the training reward, from the first third to the last, that somebody would claim."""


def in_team(history: pd.DataFrame, max_new_tokens: int, held_out: Mapping[str, Any] | None = None) -> list[Found]:
    """The findings on history.json, as `team_history` reads it, none of which is of time. `max_new_tokens`: the cap of
    a completion; `held_out`: that of metrics/team.json."""
    agents = range(agents_of(list(history.columns)))
    found = [held_out_fell(history), *on_held_out(history, held_out or {}), near_misses(history), dead_agents(history)]
    for agent in agents:
        found += [length_hack(history, agent, max_new_tokens), collapse(history, agent), silence(history, agent)]
    return [each for each in found if each]


def in_team_timing(rows: Iterable[Mapping[str, Any]]) -> list[Found]:
    """The findings on data/team-timing.json, which differ on every run."""
    speed = pd.Series([row["tokens_per_s"] for row in rows], dtype=float)
    return [each for each in (slowing(speed.dropna(), "training"),) if each]


def held_out_fell(history: pd.DataFrame) -> Found | None:
    """Held-out reward that has fallen by more than its interval."""
    told = history.dropna(subset=["eval_reward", "eval_reward_low", "eval_reward_high"])
    if len(told) < 2 or told["eval_reward_high"].iloc[-1] >= told["eval_reward_low"].iloc[0]:
        return None
    return Found(
        Severity.WARNING,
        "held-out reward fell",
        f"from {told['eval_reward'].iloc[0]:.3f} to {told['eval_reward'].iloc[-1]:.3f}",
        "take an earlier checkpoint, lower agent_learning_rate, or enable the reference KL",
    )


def on_held_out(history: pd.DataFrame, told: Mapping[str, Any]) -> list[Found]:
    """A training reward that rose, and a held-out one that did not: fell clearly, or is not told apart from none."""
    reward = thirds(history["reward_mean"], FEW_ROWS)
    if not told or reward is None or reward[1] - reward[0] < CLAIMED:
        return []
    rise = told["rise"]
    if rise["low"] > 0:
        return []
    evidence = (
        f"training reward from {reward[0]:.3f} to {reward[1]:.3f}, held out {rise['mean']:+.3f} "
        f"(95 %: {rise['low']:+.3f} to {rise['high']:+.3f}, {told['items']} items)"
    )
    if rise["high"] < 0:
        do = "take an earlier checkpoint, or train on more items: these are learnt by heart"
        return [Found(Severity.WARNING, "training rose and the held-out reward fell", evidence, do)]
    do = "look at more held-out items (team.eval_items, team.test_samples), or train longer, before you believe it"
    return [Found(Severity.WARNING, "the noise is larger than the improvement claimed", evidence, do)]


def near_misses(history: pd.DataFrame) -> Found | None:
    """Spikes of the gradient that training survived; a gradient that is no number ends it."""
    norm = array(history["grad_norm"])
    at = spikes(norm, GRADIENT_SPIKE, 0.0)
    if not len(at):
        return None
    return Found(
        Severity.WARNING,
        "training came near to failing",
        spike_sentence("gradient norm", norm, at, history["env_step"], "env step"),
        "set team.max_grad_norm, or lower team.agent_learning_rate",
    )


def dead_agents(history: pd.DataFrame) -> Found | None:
    """The last rows have nothing to learn from: all answers to a prompt earn the same."""
    last = array(history["advantage_std"])[-max(1, len(history) // 3) :]
    flat = np.isnan(last) | (last == 0)
    if len(history) < FEW_ROWS or flat.mean() < NOTHING_LEARNT:
        return None
    return Found(
        Severity.WARNING,
        "the agents have no new ideas",
        f"in {int(flat.sum())} of the last {len(last)} rows all answers to a prompt earned the same: nothing is learnt",
        "raise team.temperature or team.num_generations, or give a reward with more shades",
    )


def length_hack(history: pd.DataFrame, agent: int, cap: int) -> Found | None:
    """A reward that rises with the length of the answers, up to their cap."""
    lengths, rewards = history[f"agent{agent}_completion_length"], history["reward_mean"]
    length, reward = thirds(lengths, FEW_ROWS), thirds(rewards, FEW_ROWS)
    if length is None or reward is None or not (lengths.std() > 0 and rewards.std() > 0):
        return None
    together = float(np.corrcoef(lengths, rewards)[0, 1])
    grown = length[1] >= LONGER * length[0] and length[1] >= NEAR_CAP * cap
    if not grown or reward[1] <= reward[0] or together < TOGETHER:
        return None
    return Found(
        Severity.WARNING,
        f"agent {agent} may be paid for length",
        f"reward rose from {reward[0]:.3f} to {reward[1]:.3f} while completions grew from {length[0]:.0f} to "
        f"{length[1]:.0f} of {cap} tokens (correlation {together:.2f})",
        "read the samples, and take length out of the reward",
    )


def collapse(history: pd.DataFrame, agent: int) -> Found | None:
    """An agent that says the same each time."""
    entropy = thirds(history[f"agent{agent}_entropy"], FEW_ROWS)
    if entropy is None or entropy[0] <= 0 or not entropy[1] <= COLLAPSED * entropy[0]:
        return None
    return Found(
        Severity.WARNING,
        f"the entropy of agent {agent} collapsed",
        f"from {entropy[0]:.3g} to {entropy[1]:.3g} nats: it says the same each time and learns no more",
        "lower agent_learning_rate, or enable the reference KL",
    )


def silence(history: pd.DataFrame, agent: int) -> Found | None:
    """An agent that says nothing."""
    silent = int((history[f"agent{agent}_completion_length"] <= SILENT_TOKENS).sum())
    if len(history) < FEW_ROWS or silent <= SILENT_SHARE * len(history):
        return None
    return Found(
        Severity.WARNING,
        f"agent {agent} is silent",
        f"in {silent} of {len(history)} rows it says a token or none: the other does the work, or the reward pays for "
        "silence",
        "read the samples, and look at the reward",
    )
