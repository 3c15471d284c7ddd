"""provenance.json: where a result comes from: code, environment, command, device.

Knows which facts a reader relies on; refuses to know how they are collected.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pandera.pandas import DataFrameSchema

from ratchet.tables import records
from ratchet.tables.rules import flag, text

SCHEMA = DataFrameSchema(
    {
        "commit": text("git commit of the tree that ran; empty outside git", nullable=True),
        "dirty": flag("whether the tree had changes that no commit holds", nullable=True),
        "dirty_diff_sha256": text("hash of those changes", nullable=True, required=False),
        "constraints_sha256": text("hash of constraints.txt: every version pinned", nullable=True, required=False),
        "image_digest": text("container image; empty when none was used", nullable=True, required=False),
    },
    name="provenance.json",
    description="One object a stage: data/<stage>/provenance.json. It may hold more keys than these.",
)


def read(path: Path) -> dict[str, Any]:
    """The provenance in `path`. Raises InputError or TableError."""
    return records.read(path, SCHEMA, do=f"run `dvc repro --force {path.parent.name}` to write it anew")
