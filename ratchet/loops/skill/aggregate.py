"""Phase aggregate: many patches become one, by merging in a tree; failures come first on every level.

Refuses to know how two patches are merged.
"""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.loops.skill.parallel import in_order
from ratchet.loops.skill.records import Asked, Kind, Memory, Optimizer, Patch, Usage


def aggregate(
    memory: Memory, patches: Sequence[Patch], optimizer: Optimizer, *, merge_batch_size: int, workers: int
) -> Asked[Patch]:
    """One patch from `patches`, which must not be empty; a single one costs no call.

    Each level merges runs of `merge_batch_size` patches in their order, so that the tree depends on nothing else.
    """
    usage = Usage()
    level = sorted(patches, key=lambda patch: patch.kind is Kind.SUCCESS)
    while len(level) > 1:
        groups = [level[at : at + merge_batch_size] for at in range(0, len(level), merge_batch_size)]
        merged = in_order(lambda group: _merge(memory, group, optimizer), groups, workers)
        usage = sum((each.usage for each in merged), usage)
        level = [each.value for each in merged]
    return Asked(level[0], usage)


def _merge(memory: Memory, group: Sequence[Patch], optimizer: Optimizer) -> Asked[Patch]:
    return optimizer.merge(memory, group) if len(group) > 1 else Asked(group[0])


def merge_calls(patches: int, merge_batch_size: int) -> int:
    """Calls that `aggregate` makes for so many patches."""
    calls = 0
    while patches > 1:
        groups, rest = divmod(patches, merge_batch_size)
        calls += groups + (rest > 1)
        patches = groups + (rest > 0)
    return calls
