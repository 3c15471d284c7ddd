"""Which items are trained on and which are held out: by the hash of their prompt, so that no prompt stands in both.

Refuses to know what an item holds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.core.errors import InputError
from ratchet.loops.team.tasks.protocol import Sizes

Split = tuple[list[dict[str, Any]], list[dict[str, Any]]]


def split(items: Mapping[str, dict[str, Any]], seed: int, sizes: Sizes, where: str) -> Split:
    """(train, evaluation) of `items`, named by what must not be shared; held out first, each in the order of its hash.

    Raises InputError when there are fewer items than `sizes` ask for, or none to train on.
    """
    names = sorted(items, key=lambda name: hashlib.sha256(f"{seed}\n{name}".encode()).hexdigest())
    if sizes.evaluation + max(1, sizes.train) > len(names):
        what = f"{len(names)} different prompts are fewer than {sizes.train} to train + {sizes.evaluation} to evaluate"
        raise InputError(where, what, "lower the sizes, or add prompts")
    held_out, rest = names[: sizes.evaluation], names[sizes.evaluation :]
    return _of(items, rest[: sizes.train or None]), _of(items, held_out)


def _of(items: Mapping[str, dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    return [items[name] for name in names]
