"""Orders for the images that tests and benches run in, with the flags that this machine's pip needs (.ci/run)."""

from __future__ import annotations

import os
import shlex

import build


def order_of(kind: str, base: str | None) -> build.Order:
    """The image `kind` on `base`. Recorded beside its wheels, not in the checkout."""
    return build.Order(
        recipe=build.RECIPES[kind],
        base=base,
        pip_flags=shlex.split(os.environ.get("PIP_FLAGS", "")),
        lock=build.CACHE / "images.lock",
    )
