"""What waits to be learnt from: one group per node, with each agent's completions and what they earned, as JSON.

Refuses to know models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ratchet.loops.team.generation import Ids
from ratchet.loops.team.returns import per_completion
from ratchet.loops.team.rollout import Node


@dataclass(frozen=True)
class Share:
    """One agent's part of a group: its completions, what each earned, and its divergence from the reference (nats)."""

    prompt: Ids
    completions: tuple[Ids, ...]
    returns: tuple[float, ...]
    divergences: tuple[float, ...] | None = None

    def effective(self, coefficient: float) -> list[float]:
        """Returns minus `coefficient` times the divergence."""
        kls = self.divergences or (0.0,) * len(self.returns)
        return [value - coefficient * kl for value, kl in zip(self.returns, kls, strict=True)]


@dataclass(frozen=True)
class Group:
    """One node. `env_step`: joint actions rewarded up to it, it included."""

    turn: int
    env_step: int
    reward_mean: float
    return_mean: float
    shares: tuple[Share, ...]

    @property
    def tokens(self) -> int:
        """Tokens that the agents generated."""
        return sum(len(ids) for share in self.shares for ids in share.completions)


def group_of(node: Node) -> Group:
    """What is learnt from `node`."""
    earned = per_completion(node.returns, node.combos, len(node.said[0].completions))
    shares = [Share(s.prompt, s.completions, tuple(e)) for s, e in zip(node.said, earned, strict=True)]
    reward, value = (sum(values) / len(values) for values in (node.rewards, node.returns))
    return Group(node.turn, node.env_step, reward, value, tuple(shares))


def as_json(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """`groups` as JSON."""
    return [asdict(group) for group in groups]


def from_json(values: Sequence[Mapping[str, Any]]) -> list[Group]:
    """The groups that `as_json` wrote."""
    return [Group(**{**value, "shares": tuple(_share(share) for share in value["shares"])}) for value in values]


def _share(value: Mapping[str, Any]) -> Share:
    kls = value["divergences"]
    return Share(
        prompt=tuple(value["prompt"]),
        completions=tuple(tuple(ids) for ids in value["completions"]),
        returns=tuple(value["returns"]),
        divergences=None if kls is None else tuple(kls),
    )
