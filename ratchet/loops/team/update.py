"""MAGRPO's update: one model after another learns from the groups in the buffer, one optimizer step a minibatch.

The loss of a group is the mean over its completions of −A · Σ log p(token), A the completion's advantage; of a
minibatch, the mean over its groups. Knows agents and groups; refuses to know where a return comes from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from ratchet.core.errors import InputError
from ratchet.core.seeds import Permutation, derive
from ratchet.loops.team.buffer import Group, Share
from ratchet.loops.team.likelihood import Scored, Spoken, backward
from ratchet.loops.team.memory import within_memory
from ratchet.loops.team.returns import advantages, deviation
from ratchet.loops.team.team import Team


@dataclass
class Account:
    """What one agent's part of an update came to; each list has one entry per minibatch, group or completion."""

    losses: list[float] = field(default_factory=list[float])
    grad_norms: list[float] = field(default_factory=list[float])
    scored: list[Scored] = field(default_factory=list[Scored])
    spreads: list[float] = field(default_factory=list[float])


@dataclass
class Updated:
    """The accounts by agent, minibatches in which nothing was to be learnt, and the micro-batch that memory allowed."""

    accounts: list[Account]
    skipped: int = 0
    steps: int = 0
    micro_batch_tokens: int = 0


def update(team: Team, groups: Sequence[Group], name: tuple[object, ...], micro_batch_tokens: int) -> Updated:
    """Learn from `groups` once, turn by turn. `name` keys the order of groups in minibatches.

    Raises InputError naming agent and env step when a loss or a gradient is no finite number: no step is made then.
    """
    done = Updated([Account() for _ in range(team.agents)], micro_batch_tokens=micro_batch_tokens)
    for policy in range(len(team.policies)):
        for turn in sorted({group.turn for group in groups}):
            chosen = [group for group in groups if group.turn == turn]
            orders = {agent: _order(team, chosen, (*name, agent, turn)) for agent in team.speakers(policy)}
            size = team.config.batch_nodes
            for start in range(0, len(chosen), size):
                batches = {agent: order[start : start + size] for agent, order in orders.items()}
                _minibatch(team, policy, batches, done)
        team.optimizers[policy].zero_grad(set_to_none=True)  # one model's gradients at a time
    return done


def _order(team: Team, groups: Sequence[Group], name: tuple[object, ...]) -> list[Group]:
    permutation = Permutation(len(groups), derive(team.config.seed, "order", *name))
    return [groups[permutation[place]] for place in range(len(groups))]


def _minibatch(team: Team, policy: int, batches: dict[int, list[Group]], done: Updated) -> None:
    """One optimizer step of model `policy` from its agents' groups, unless no completion is better than another."""
    spoken = {agent: _weighted(team, agent, batch, len(batches)) for agent, batch in batches.items()}
    for agent, batch in batches.items():
        done.accounts[agent].spreads += [_spread(team, group.shares[agent]) for group in batch]
    if not any(spoken.values()):
        done.skipped += 1
        return
    scored = _accumulate(team, policy, spoken, done)
    step = max(group.env_step for batch in batches.values() for group in batch)
    norm = _gradient_norm(team, policy, list(batches), step)
    for agent, found in scored.items():
        loss = -sum(one.coefficient * was.log_prob for one, was in zip(spoken[agent], found, strict=True))
        _refuse_no_number("loss", loss, [agent], step)
        if not found:
            continue
        account = done.accounts[agent]
        account.losses.append(loss * len(batches))
        account.grad_norms.append(norm)
        account.scored += found
    team.optimizers[policy].step()
    team.optimizers[policy].zero_grad(set_to_none=True)
    done.steps += 1


def _weighted(team: Team, agent: int, batch: Sequence[Group], sharing: int) -> list[Spoken]:
    """The agent's completions of a minibatch, each with its coefficient A / (G · groups · agents of the model); those
    whose advantage is 0 have no gradient and cost nothing."""
    found: list[Spoken] = []
    for group in batch:
        share = group.shares[agent]
        scale = 1.0 / (len(share.completions) * len(batch) * sharing)
        earned = share.effective(team.config.reference_kl_coef)
        worth = advantages(earned, team.config.advantage_mode, normalise=team.config.advantage_normalization)
        pairs = zip(share.completions, worth, strict=True)
        found += [Spoken(share.prompt, ids, value * scale) for ids, value in pairs if value]
    return found


def _spread(team: Team, share: Share) -> float:
    """How far the group's advantages are apart before they are normalised."""
    earned = share.effective(team.config.reference_kl_coef)
    return deviation(advantages(earned, team.config.advantage_mode, normalise=False))


def _accumulate(team: Team, policy: int, spoken: dict[int, list[Spoken]], done: Updated) -> dict[int, list[Scored]]:
    """The minibatch's gradient, with smaller micro-batches for good where memory does not suffice."""

    def gradient(tokens: int) -> dict[int, list[Scored]]:
        return {agent: backward(team.policies[policy], said, tokens) for agent, said in spoken.items()}

    undo = partial(team.optimizers[policy].zero_grad, set_to_none=True)
    scored, done.micro_batch_tokens = within_memory(gradient, done.micro_batch_tokens, "an update", undo)
    return scored


def _gradient_norm(team: Team, policy: int, agents: list[int], env_step: int) -> float:
    """The gradient's norm before it is clipped, if it is to be."""
    tensors = list(team.policies[policy].trainable().values())
    limit = team.config.max_grad_norm
    if limit is None:
        norm = torch.nn.utils.get_total_norm([t.grad for t in tensors if t.grad is not None])
    else:
        norm = torch.nn.utils.clip_grad_norm_(tensors, limit)
    _refuse_no_number("gradient", float(norm), agents, env_step)
    return float(norm)


def _refuse_no_number(what: str, value: float, agents: Sequence[int], env_step: int) -> None:
    if not math.isfinite(value):
        who = " and ".join(f"agent {agent}" for agent in agents)
        do = "lower team.agent_learning_rate or set team.max_grad_norm; the last checkpoint is good"
        raise InputError(f"team, {who}, env step {env_step}", f"the {what} is {value}", do)


def told(updated: Updated, groups: Sequence[Group]) -> dict[str, Any]:
    """An update's numbers, by the names they have in the history. None where no minibatch had anything to learn."""
    row: dict[str, Any] = {
        "reward_mean": _mean([group.reward_mean for group in groups]),
        "return_mean": _mean([group.return_mean for group in groups]),
        "advantage_std": _mean([spread for account in updated.accounts for spread in account.spreads]),
        "skipped_updates": updated.skipped,
        "optimizer_steps": updated.steps,
    }
    agents = [_agent_row(account, groups, agent) for agent, account in enumerate(updated.accounts)]
    for name in ("loss", "grad_norm", "kl", "entropy"):
        row[name] = _mean([value for each in agents if (value := each[name]) is not None])
    return row | {f"agent{agent}_{name}": value for agent, each in enumerate(agents) for name, value in each.items()}


def _agent_row(account: Account, groups: Sequence[Group], agent: int) -> dict[str, float | None]:
    shares = [group.shares[agent] for group in groups]
    lengths = [len(ids) for share in shares for ids in share.completions]
    kls = [kl for share in shares for kl in share.divergences or ()]
    tokens = sum(one.tokens for one in account.scored)
    return {
        "reward": _mean([group.reward_mean for group in groups]),
        "loss": _mean(account.losses),
        "grad_norm": _mean(account.grad_norms),
        "entropy": sum(one.entropy for one in account.scored) / tokens if tokens else None,
        "kl": _mean(kls),
        "completion_length": _mean(lengths),
    }


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
