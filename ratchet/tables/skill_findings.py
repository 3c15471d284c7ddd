"""What a person should see in the history of a skill training and in its test.

Pure functions of tables; refuses to know files, and who made them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from ratchet.tables.findings import Found, Severity, slowing, thirds

ACCELERATES = 1.5
"""Tokens a step in the last third against the first third, the first step left out: its document may be empty."""
FEW_STEPS = 4
"""Below so many steps neither tokens nor gate have a trend."""
RECENT, STALE = 4, 0.75
"""Of the last steps, at least so many of them and half of all, the share that brought nothing new."""
CHANCE = 0.05


def in_skill(
    history: pd.DataFrame,
    baseline: float | None,
    params: Mapping[str, Any] | None = None,
    test: Mapping[str, Any] | None = None,
) -> list[Found]:
    """The findings on history.json, as `skill_history` reads it. `baseline`: validation of the seed document on the
    gate's metric; `params`: the section `skill`; `test`: that of metrics/skill.json."""
    found = [
        under_baseline(history, baseline),
        *on_test(history, baseline, test or {}),
        budget_jump(history),
        accelerating_tokens(history),
        one_sided_gate(history),
        dead_optimizer(history),
        slow_update(params or {}),
        slowing(_tokens(history) / history["wall_time_s"].clip(lower=1e-9), "the loop"),
    ]
    return [each for each in found if each]


def under_baseline(history: pd.DataFrame, baseline: float | None) -> Found | None:
    """A document that ends up worse than the one it started from."""
    if baseline is None or history["current_score"].iloc[-1] >= baseline:
        return None
    return Found(
        Severity.WARNING,
        "validation is under the seed document",
        f"it ended at {history['current_score'].iloc[-1]:.3f}, the seed document has {baseline:.3f}",
        "use the seed document, and the paired gate",
    )


def on_test(history: pd.DataFrame, baseline: float | None, test: Mapping[str, Any]) -> list[Found]:
    """A gain on validation that the test tasks do not show, or show no clearer than chance does."""
    gain = None if baseline is None else float(history["best_score"].iloc[-1]) - baseline
    if not test or gain is None or gain <= 0:
        return []
    told = test["gain"]
    on_both = f"{gain:+.3f} on validation, {told['hard']:+.3f} on {test['best']['n']} test tasks"
    if told["hard"] < 0:
        what, more = "validation rose and the test fell", ""
        do = "keep the seed document; enlarge the validation split, for the edits fit the tasks that it holds"
    elif told["p"] > CHANCE:
        what, more = "the noise is larger than the improvement claimed", f" (p = {told['p']:.2g})"
        do = "test more tasks (skill.tasks.test_size), or train on more"
    else:
        return []
    return [Found(Severity.WARNING, what, on_both + more, do)]


def budget_jump(history: pd.DataFrame) -> Found | None:
    """An edit budget, the loop's learning rate, that rises: no schedule does."""
    budget = history["edit_budget"].to_numpy()
    rises = [step for step in range(1, len(budget)) if budget[step] > budget[step - 1]]
    if not rises:
        return None
    at = rises[0]
    return Found(
        Severity.WARNING,
        "the learning rate jumps",
        f"the edit budget goes from {budget[at - 1]} to {budget[at]} at step {history['step'].iloc[at]}; "
        "a schedule only falls",
        "look whether the run was continued under another horizon",
    )


def accelerating_tokens(history: pd.DataFrame) -> Found | None:
    """Tokens a step that grow."""
    if len(history) < FEW_STEPS:
        return None
    used = _tokens(history).iloc[1:]
    found = thirds(used, 1)
    if found is None or found[1] <= ACCELERATES * found[0]:
        return None
    return Found(
        Severity.WARNING,
        "token use accelerates",
        f"from {found[0]:,.0f} to {found[1]:,.0f} tokens a step: the document or the number of patches grows",
        "raise minibatch_size and merge_batch_size for fewer calls",
    )


def one_sided_gate(history: pd.DataFrame) -> Found | None:
    """A gate that accepts all or nothing of what it judged."""
    judged = history[history["action"] != "skip_no_patches"]
    accepted = int(judged["action"].str.contains("accept").sum())
    if len(judged) < FEW_STEPS or 0 < accepted < len(judged):
        return None
    if accepted:
        return Found(
            Severity.WARNING,
            "the gate accepts everything",
            f"all {len(judged)} candidates: it tells nothing apart",
            "enlarge the validation split",
        )
    return Found(
        Severity.WARNING,
        "the gate accepts nothing",
        f"none of {len(judged)} candidates: the optimizer does not help, or the validation split is too small for "
        "gains of this size",
        "read the rejected edits (data/skill/edits), or enlarge the validation split",
    )


def dead_optimizer(history: pd.DataFrame) -> Found | None:
    """The last steps propose nothing that applies, or documents that were judged before."""
    recent = history.iloc[-max(RECENT, len(history) // 2) :]
    imperfect = recent["rollout_hard"] < 1
    if len(recent) < RECENT or not imperfect.any():
        return None
    repeated = (history["candidate_hash"].duplicated() & (history["n_edits_ranked"] > 0)).loc[recent.index]
    nothing = (recent["n_edits_ranked"] == 0) & imperfect
    if (repeated | nothing).mean() < STALE:
        return None
    return Found(
        Severity.WARNING,
        "the optimizer has no new ideas",
        f"of the last {len(recent)} steps {int(nothing.sum())} selected no edit although tasks failed, "
        f"{int((repeated & ~nothing).sum())} repeated a document",
        "change the optimizer's model, raise batch_size so that it sees other failures, or stop here",
    )


def slow_update(params: Mapping[str, Any]) -> Found | None:
    """slow_update left on where a document is made to be used."""
    if not params.get("use_slow_update"):
        return None
    return Found(
        Severity.NOTE,
        "slow_update is on",
        "it asks the agent twice slow_update_samples tasks and the whole validation split more each epoch",
        "switch it off in production (skill.use_slow_update: false)",
    )


def _tokens(history: pd.DataFrame) -> pd.Series:
    """Tokens of each step, of agent and optimizer together."""
    names = [name for name in history.columns if name.startswith("tokens.") and name.endswith("_tokens")]
    return history[names].sum(axis=1)
