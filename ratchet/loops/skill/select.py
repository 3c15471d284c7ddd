"""Phase select: at most the edit budget's worth of edits goes on; a patch that fits costs no call.

Refuses to know what makes an edit good.
"""

from __future__ import annotations

from ratchet.loops.skill.records import Asked, Edit, Memory, Optimizer, Patch


def select(memory: Memory, patch: Patch, optimizer: Optimizer) -> Asked[tuple[Edit, ...]]:
    """The edits of `patch` when they fit `memory.edit_budget`, else the ones the optimizer ranks highest, best first.

    A ranking with places that are doubled or out of range is not trusted in part: the optimizer's reader refuses it.
    """
    if len(patch.edits) <= memory.edit_budget:
        return Asked(patch.edits)
    ranking = optimizer.rank(memory, patch.edits)
    return Asked(tuple(patch.edits[place] for place in ranking.value[: memory.edit_budget]), ranking.usage)
