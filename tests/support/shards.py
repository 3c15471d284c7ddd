"""A folder of documents in one call, as stage `prepare` leaves it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ratchet.core import atomic
from ratchet.data.documents import SHARD_DOCUMENTS, ShardWriter


def write_documents(folder: Path, texts: Iterable[str], *, shard_documents: int = SHARD_DOCUMENTS) -> None:
    """Make `folder` hold exactly `texts`, atomically; what was there is replaced."""
    with atomic.output_folder(folder) as temp, ShardWriter(temp, shard_documents=shard_documents) as writer:
        for text in texts:
            writer.add(text)
