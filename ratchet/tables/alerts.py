"""What a person should see in the history of a loop: each alert one sentence with its numbers and what to do.

Looks at the table alone; refuses to know who made it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from ratchet.tables.team_history import agents_of

ACCELERATES = 1.5
"""Tokens a step in the last third against the first third, the first step left out: its document may be empty."""
FEW_STEPS = 4
"""Below so many steps neither tokens nor gate have a trend."""
NEAR_CAP, LONGER, TOGETHER = 0.9, 1.2, 0.5
"""Length of the last third against the cap and against the first third, and its correlation with the reward, from which
on a reward is taken to be bought with length."""
COLLAPSED = 0.1
"""Entropy of the last third against the first, at most."""
SILENT_TOKENS, SILENT_SHARE = 1.0, 0.5


def skill_alerts(frame: pd.DataFrame, baseline: float | None, params: dict[str, Any] | None = None) -> list[str]:
    """The alerts on `frame` (as ratchet.tables.skill_history reads it); `baseline`: validation of the seed document on
    the gate's metric; `params`: the section `skill`, where known."""
    found = [_under_baseline(frame, baseline), _budget_jump(frame), _tokens(frame), _gate(frame)]
    if params and params.get("use_slow_update"):
        found.append(
            "slow_update is on: it asks the agent twice slow_update_samples tasks and the whole validation split more "
            "each epoch; switch it off in production"
        )
    return [alert for alert in found if alert]


def _under_baseline(frame: pd.DataFrame, baseline: float | None) -> str:
    if baseline is None or frame["current_score"].iloc[-1] >= baseline:
        return ""
    return (
        f"validation ended at {frame['current_score'].iloc[-1]:.3f}, under the seed document's {baseline:.3f}: "
        "use the seed document, and the paired gate"
    )


def _budget_jump(frame: pd.DataFrame) -> str:
    budget = frame["edit_budget"].to_numpy()
    rises = [step for step in range(1, len(budget)) if budget[step] > budget[step - 1]]
    if not rises:
        return ""
    at = rises[0]
    return (
        f"the edit budget jumps from {budget[at - 1]} to {budget[at]} at step {frame['step'].iloc[at]}: the schedule "
        "was restarted (a resume under another horizon?); a schedule only falls"
    )


def _tokens(frame: pd.DataFrame) -> str:
    if len(frame) < FEW_STEPS:
        return ""
    used = frame[[name for name in frame.columns if name.startswith("tokens.") and name.endswith("_tokens")]].sum(
        axis=1
    )
    used = used.iloc[1:]
    third = max(1, len(used) // 3)
    first, last = used.iloc[:third].mean(), used.iloc[-third:].mean()
    if last <= ACCELERATES * first:
        return ""
    return (
        f"tokens a step grew from {first:,.0f} to {last:,.0f}: the document or the number of patches grows; raise "
        "minibatch_size and merge_batch_size for fewer calls"
    )


def _gate(frame: pd.DataFrame) -> str:
    judged = frame[frame["action"] != "skip_no_patches"]
    accepted = judged["action"].str.contains("accept").sum()
    if len(judged) < FEW_STEPS or 0 < accepted < len(judged):
        return ""
    if accepted:
        return f"the gate accepted all {len(judged)} candidates: it tells nothing apart; enlarge the validation split"
    return (
        f"the gate rejected all {len(judged)} candidates: the optimizer does not help, or the validation split is too "
        "small for gains of this size"
    )


def team_alerts(frame: pd.DataFrame, max_new_tokens: int) -> list[str]:
    """The alerts on `frame` (as ratchet.tables.team_history reads it); `max_new_tokens`: the cap of a completion."""
    agents = range(agents_of(list(frame.columns)))
    found = [_held_out(frame)]
    for agent in agents:
        found += [_length(frame, agent, max_new_tokens), _collapse(frame, agent), _silent(frame, agent)]
    return [alert for alert in found if alert]


def _held_out(frame: pd.DataFrame) -> str:
    """Held-out reward that has fallen by more than its interval."""
    told = frame.dropna(subset=["eval_reward", "eval_reward_low", "eval_reward_high"])
    if len(told) < 2 or told["eval_reward_high"].iloc[-1] >= told["eval_reward_low"].iloc[0]:
        return ""
    return (
        f"held-out reward fell from {told['eval_reward'].iloc[0]:.3f} to {told['eval_reward'].iloc[-1]:.3f}: take an "
        "earlier checkpoint, lower agent_learning_rate, or enable the reference KL"
    )


def _thirds(values: pd.Series) -> tuple[float, float] | None:
    """Means of the first and of the last third; None for too few rows."""
    if len(values) < FEW_STEPS:
        return None
    third = max(1, len(values) // 3)
    return float(values.iloc[:third].mean()), float(values.iloc[-third:].mean())


def _length(frame: pd.DataFrame, agent: int, cap: int) -> str:
    lengths, rewards = frame[f"agent{agent}_completion_length"], frame["reward_mean"]
    length, reward = _thirds(lengths), _thirds(rewards)
    if length is None or reward is None or not (lengths.std() > 0 and rewards.std() > 0):
        return ""
    together = float(np.corrcoef(lengths, rewards)[0, 1])
    grown = length[1] >= LONGER * length[0] and length[1] >= NEAR_CAP * cap
    if not grown or reward[1] <= reward[0] or together < TOGETHER:
        return ""
    return (
        f"agent {agent}: reward rose from {reward[0]:.3f} to {reward[1]:.3f} while completions grew from "
        f"{length[0]:.0f} to {length[1]:.0f} of {cap} tokens (correlation {together:.2f}): read the samples, "
        "the reward may pay for length"
    )


def _collapse(frame: pd.DataFrame, agent: int) -> str:
    entropy = _thirds(frame[f"agent{agent}_entropy"])
    if entropy is None or entropy[0] <= 0 or not entropy[1] <= COLLAPSED * entropy[0]:
        return ""
    return (
        f"agent {agent}: entropy collapsed from {entropy[0]:.3g} to {entropy[1]:.3g} nats: it says the same each time "
        "and learns no more; lower agent_learning_rate, or enable the reference KL"
    )


def _silent(frame: pd.DataFrame, agent: int) -> str:
    silent = int((frame[f"agent{agent}_completion_length"] <= SILENT_TOKENS).sum())
    if len(frame) < FEW_STEPS or silent <= SILENT_SHARE * len(frame):
        return ""
    return (
        f"agent {agent} is silent in {silent} of {len(frame)} rows (a token or none): the other does the work, or the "
        "reward pays for silence; read the samples"
    )
