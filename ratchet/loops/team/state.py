"""What a team training carries from one segment to the next: a few numbers, the buffer, and what waits for a row.

All of it is JSON; weights and moments are blobs beside it. Refuses to know how a step is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ratchet.loops.team import buffer
from ratchet.loops.team.buffer import Group
from ratchet.train.mirror import RunIdentity

UPDATES_FILE = "updates.jsonl"
"""In a run: one fsynced row an update, the same on every remake."""


@dataclass(frozen=True)
class State:
    """After `updates` updates. `position`: items of the present epoch that were rolled out; `epoch`: epochs completed.

    `trained`: an optimizer step was made, so the checkpoint holds weights; before, they are the untrained ones.
    `evaluated`, `samples`: a look at held-out items and texts to keep, told with the next update's row.
    """

    evaluated_untrained: bool = False
    epoch: int = 0
    position: int = 0
    env_step: int = 0
    updates: int = 0
    tokens: int = 0
    trained: bool = False
    micro_batch_tokens: int = 0
    buffer: tuple[Group, ...] = ()
    evaluated: Mapping[str, float] | None = None
    samples: tuple[Mapping[str, Any], ...] = ()
    wandb: RunIdentity | None = None
    seconds: float = field(default=0.0, compare=False)
    """Of all processes so far; no result."""

    def public(self) -> dict[str, Any]:
        """As JSON. `step`, which `ratchet runs ls` shows, is the number of env steps."""
        plain = {name: value for name, value in asdict(self).items() if name != "buffer"}
        return plain | {"buffer": buffer.as_json(self.buffer), "step": self.env_step}

    def with_groups(self, groups: Sequence[Group]) -> State:
        """With `groups` behind those that wait."""
        return replace(self, buffer=(*self.buffer, *groups))


def state_from(value: Mapping[str, Any]) -> State:
    """The state that `public` wrote; the first one for an empty mapping."""
    fields = {name: inner for name, inner in value.items() if name != "step"}
    if not fields:
        return State()
    fields["buffer"] = tuple(buffer.from_json(fields["buffer"]))
    fields["samples"] = tuple(fields["samples"])
    return State(**fields)
