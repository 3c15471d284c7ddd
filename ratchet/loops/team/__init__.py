"""The team loop: N language-model agents that learn to work together from one shared reward.

`from ratchet.loops.team import TeamConfig, TeamTrainer, read_checkpoint_metadata`. Loaded when first asked for: the
names of tasks and knobs are wanted where torch is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ratchet.loops.team.parameters import TeamConfig
    from ratchet.loops.team.trainer import TeamTrainer, read_checkpoint_metadata

__all__ = ["TeamConfig", "TeamTrainer", "read_checkpoint_metadata"]


def __getattr__(name: str) -> Any:
    if name == "TeamConfig":
        from ratchet.loops.team.parameters import TeamConfig

        return TeamConfig
    if name in __all__:
        from ratchet.loops.team import trainer

        return getattr(trainer, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
