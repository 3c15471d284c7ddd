"""Texts that benchmarks run on: corpora in installed packages, pinned in params.yaml, or folders of shards."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from ratchet.data.documents import read_documents
from ratchet.data.sources.package import CorpusName, PackageParams, PackageSource
from ratchet.params import read_document

ROOT = Path(__file__).resolve().parent.parent


def texts_of(corpus: str) -> list[str]:
    """All texts of a package corpus by its name, or of a folder that `prepare` has written; empty ones left out."""
    if corpus not in get_args(CorpusName):
        return list(read_documents(Path(corpus)))
    pinned = read_document(ROOT / "params.yaml")["prepare"]["package"]["sha256"]
    params = PackageParams.model_validate({"corpus": corpus, "sha256": pinned})
    return [document.text for document in PackageSource(params).open().documents() if document.text]
