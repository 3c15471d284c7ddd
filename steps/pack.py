"""Stage `pack`: encode every document once and lay it into rows. All splits appear together or none does."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from ratchet.core import atomic
from ratchet.data.documents import read_documents
from ratchet.data.packing import pack_split
from ratchet.data.row_plan import Gaps
from ratchet.params import Params
from ratchet.stage import Stage


class PackParams(Params):
    """What defines the rows."""

    sequence_len: int = Field(
        ge=2, description="targets per row: tokens of context the model is trained and judged with"
    )


class Inputs(NamedTuple):
    train: Path = Path("data/prepare/train")
    val: Path = Path("data/prepare/val")
    test: Path = Path("data/prepare/test")
    tokenizer: Path = Path("data/tokenizer")


class Outputs(NamedTuple):
    train: Path = Path("data/pack/train")
    val: Path = Path("data/pack/val")
    test: Path = Path("data/pack/test")
    metrics: Path = Path("metrics/pack.json")
    provenance: Path = Path("data/pack/provenance.json")


def run(params: PackParams, inputs: Inputs, outputs: Outputs) -> None:
    """Write the three packed splits and their figures."""
    splits = (
        ("train", inputs.train, outputs.train, Gaps.FILL),
        ("val", inputs.val, outputs.val, Gaps.PAD),
        ("test", inputs.test, outputs.test, Gaps.PAD),
    )
    metrics = {}
    with ExitStack() as published:
        for name, documents, packed, gaps in splits:
            folder = published.enter_context(atomic.output_folder(packed))
            manifest = pack_split(
                read_documents(documents),
                inputs.tokenizer,
                folder,
                sequence_len=params.sequence_len,
                gaps=gaps,
                where=documents,
            )
            print(_summary(name, manifest), flush=True)
            metrics[name] = {key: value for key, value in manifest.items() if key not in ("format", "version", "files")}
    atomic.write_json(outputs.metrics, metrics)


def _summary(name: str, manifest: dict[str, Any]) -> str:
    """One line for a person watching."""
    return (
        f"pack: {name} {manifest['rows']:,} rows of {manifest['sequence_len']:,} targets, "
        f"{manifest['utilisation']:.2%} filled; {manifest['tokens']:,} tokens of {manifest['documents']:,} documents, "
        f"{manifest['continued_documents']:,} of them in several rows, {manifest['lost_tokens']:,} tokens lost"
    )


STAGE = Stage("pack", PackParams, Inputs(), Outputs(), run)

if __name__ == "__main__":
    STAGE.main()
