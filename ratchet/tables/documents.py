"""documents.parquet: the judge's account of every document of the split, so that two models compare in pairs.

Knows the columns; refuses to know the documents' text.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow
import pyarrow.parquet
from pandera.pandas import DataFrameSchema

from ratchet.core.errors import InputError
from ratchet.tables.conform import conform, row_numbers
from ratchet.tables.rules import count, number

SCHEMA = DataFrameSchema(
    {
        "document": count("number of the document in its split, counted from 0", order="rising"),
        "tokens": count("tokens of the document that were predicted"),
        "bytes": count("UTF-8 bytes of the document", low=1),
        "nats": number("sum of the negative log likelihoods of its tokens, nats", low=0),
        "bpb": number("bits per byte of the document: nats / (ln 2 · bytes)", low=0),
        "ngram_nats": number("what the byte n-gram model pays for the document, nats", low=0),
    },
    name="documents.parquet",
    description="One row per validation document, written by `evaluate` to data/evaluate/documents.parquet.",
)

REMEDY = "run `dvc repro --force evaluate` to write it anew"


def read(path: Path) -> pd.DataFrame:
    """The documents table in `path`. Raises InputError (missing, no parquet, no row) or TableError."""
    try:
        frame = pyarrow.parquet.read_table(path).to_pandas()
    except FileNotFoundError:
        raise InputError(path, "no such file", "run `dvc repro evaluate`") from None
    except pyarrow.ArrowInvalid as error:
        raise InputError(path, f"not parquet: {str(error)[:80]}", REMEDY) from None
    if frame.empty:
        raise InputError(path, "holds no document: nothing was judged", "see that data/prepare/val holds documents")
    return conform(frame, SCHEMA, path, rows=row_numbers, do=REMEDY)
