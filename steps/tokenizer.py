"""Stage `tokenizer`: learn byte-pair merges from the training documents. Never reads validation or test documents."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from ratchet.core import atomic
from ratchet.data.documents import read_documents
from ratchet.data.tokenizer_training import train
from ratchet.params import Params
from ratchet.stage import Stage


class TokenizerParams(Params):
    """What defines the vocabulary."""

    vocab_size: int = Field(description="number of token ids: 256 bytes, merges, 4 specials")
    max_characters: int = Field(ge=1, description="learn from at most so many characters, first documents first")
    max_document_characters: int = Field(ge=1, description="and from at most so many of one document")


class Inputs(NamedTuple):
    train: Path = Path("data/prepare/train")


class Outputs(NamedTuple):
    tokenizer: Path = Path("data/tokenizer")
    metrics: Path = Path("metrics/tokenizer.json")
    provenance: Path = Path("data/tokenizer-provenance.json")


def run(params: TokenizerParams, inputs: Inputs, outputs: Outputs) -> None:
    """Write the tokenizer's folder and how much it was learnt from."""
    tokenizer, sample = train(
        read_documents(inputs.train),
        vocab_size=params.vocab_size,
        max_characters=params.max_characters,
        max_document_characters=params.max_document_characters,
        where=inputs.train,
    )
    with atomic.output_folder(outputs.tokenizer) as folder:
        tokenizer.save(folder)
    metrics = {
        "vocab_size": tokenizer.vocab_size,
        **asdict(sample),
        "longest_token_bytes": int(tokenizer.token_bytes.max()),
    }
    atomic.write_json(outputs.metrics, metrics)
    read = f"{sample.characters:,} characters of {sample.documents:,} documents"
    print(f"tokenizer: {tokenizer.vocab_size:,} token ids learnt from {read}")


STAGE = Stage("tokenizer", TokenizerParams, Inputs(), Outputs(), run)

if __name__ == "__main__":
    STAGE.main()
