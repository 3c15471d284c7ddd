"""Stage prepare: get text from a source, split it by document hash, write parquet shards and the manifest.

Refuses to know how any source works.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field

from ratchet.data.preparation import prepare
from ratchet.data.sources.huggingface import HuggingFaceParams, HuggingFaceSource
from ratchet.data.sources.package import PackageParams, PackageSource
from ratchet.data.sources.parquet import ParquetParams, ParquetSource
from ratchet.data.sources.protocol import Source
from ratchet.data.sources.text import TextParams, TextSource
from ratchet.data.splitting import SplitRule
from ratchet.params import Params
from ratchet.stage import Needs, Stage


class PrepareParams(Params):
    """Section `prepare` of params.yaml."""

    source: Literal["package", "huggingface", "parquet", "text"] = Field(
        default="package", description="where text comes from"
    )
    val_share: float = Field(default=0.05, gt=0, lt=0.5, description="share of the documents for validation, 0 to 0.5")
    test_share: float = Field(
        default=0.05, gt=0, lt=0.5, description="share of the documents for the test split, 0 to 0.5"
    )
    split_seed: int = Field(default=0, ge=0, description="salts the hash that decides a document's split")
    shard_documents: int = Field(default=10_000, ge=1, description="documents in one parquet shard")
    package: PackageParams = Field(default_factory=PackageParams, description="read when source is package")
    huggingface: HuggingFaceParams = Field(
        default_factory=HuggingFaceParams, description="read when source is huggingface"
    )
    parquet: ParquetParams = Field(default_factory=ParquetParams, description="read when source is parquet")
    text: TextParams = Field(default_factory=TextParams, description="read when source is text")


class Inputs(NamedTuple):
    """None: DVC cannot see into a package, a hub or a folder outside the project; their sha256 is a parameter."""


class Outputs(NamedTuple):
    """Three folders of shards, and the manifest."""

    train: Path = Path("data/prepare/train")
    val: Path = Path("data/prepare/val")
    test: Path = Path("data/prepare/test")
    manifest: Path = Path("metrics/prepare.json")
    provenance: Path = Path("data/prepare/provenance.json")


def run(params: PrepareParams, inputs: Inputs, outputs: Outputs) -> None:
    """Prepare the corpus that `params` names."""
    value = prepare(
        params.source,
        choose_source(params),
        SplitRule(params.val_share, params.test_share, params.split_seed),
        shard_documents=params.shard_documents,
        folders={"train": outputs.train, "val": outputs.val, "test": outputs.test},
        manifest=outputs.manifest,
    )
    for name, split in value["splits"].items():
        print(
            f"prepare: {name} {split['documents']:,} documents, {split['bytes']:,} bytes in {split['shards']} shard(s)"
        )


def choose_source(params: PrepareParams) -> Source:
    """The source that `params.source` names."""
    match params.source:
        case "package":
            return PackageSource(params.package)
        case "huggingface":
            return HuggingFaceSource(params.huggingface)
        case "parquet":
            return ParquetSource(params.parquet)
        case "text":
            return TextSource(params.text)


def needs(params: PrepareParams) -> Needs:
    """The folder of the user's own text. Packages are in the image; what comes from a hub needs a network."""
    match params.source:
        case "huggingface":
            return Needs(outside="source huggingface downloads, and a container has no network")
        case "parquet":
            return Needs(reads=(Path(params.parquet.folder),))
        case "text":
            return Needs(reads=(Path(params.text.folder),))
        case "package":
            return Needs()


STAGE = Stage("prepare", PrepareParams, Inputs(), Outputs(), run, needs=needs)

if __name__ == "__main__":
    STAGE.main()
