"""metrics/*.json: the results of each stage that are the same on every rerun, one object a stage.

Knows the keys readers rely on; refuses to know seconds, memory and paths. A stage may write more keys than these.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pandera.pandas import DataFrameSchema

from ratchet.core.errors import InputError
from ratchet.tables import records
from ratchet.tables.rules import number, text

SPLITS = ("train", "val", "test")

PREPARE = DataFrameSchema(
    {
        "corpus": text("name of the corpus"),
        "source": text("kind of source it came from"),
        "licence": text("licence of its text"),
        "sha256": text("hash of the corpus' files"),
        "documents": number("documents kept, all splits", low=1, whole=True),
        "bytes": number("their UTF-8 bytes", low=1, whole=True),
        **{f"splits.{s}.documents": number(f"documents of the {s} split", low=1, whole=True) for s in SPLITS},
        **{f"splits.{s}.bytes": number(f"UTF-8 bytes of the {s} split", low=1, whole=True) for s in SPLITS},
        "dropped.duplicates_within": number("exact duplicates left out, seen in the same split", low=0, whole=True),
        "dropped.duplicates_across": number("exact duplicates left out, seen in another split", low=0, whole=True),
        "dropped.empty": number("documents without text, left out", low=0, whole=True),
    },
    name="metrics/prepare.json",
    description="The manifest of the corpus; written by `prepare`.",
)

TOKENIZER = DataFrameSchema(
    {
        "vocab_size": number("token ids, the 4 specials among them", low=1, whole=True),
        "documents": number("documents that merges were learnt from", low=1, whole=True),
        "characters": number("characters of them", low=1, whole=True),
        "longest_token_bytes": number("bytes of the longest token", low=1, whole=True),
    },
    name="metrics/tokenizer.json",
    description="What the vocabulary was learnt from; written by `tokenizer`.",
)

PACK = DataFrameSchema(
    {
        **{f"{s}.documents": number(f"documents of the {s} split", low=1, whole=True) for s in SPLITS},
        **{f"{s}.rows": number(f"rows of the {s} split", low=1, whole=True) for s in SPLITS},
        **{
            f"{s}.utilisation": number(f"share of the {s} rows' places that hold tokens", low=0, high=1) for s in SPLITS
        },
    },
    name="metrics/pack.json",
    description="How well the rows are filled, per split; written by `pack`.",
)

TRAIN = DataFrameSchema(
    {
        "steps": number("optimizer steps trained", low=1, whole=True),
        "tokens": number("tokens trained on", low=1, whole=True),
        "final_loss": number("mean loss of the last 10 steps, nats per token", low=0),
        "params_m": number("parameters of the model, millions", low=0),
        "horizon_steps": number("steps the schedule was laid out for", low=1, whole=True),
    },
    name="metrics/train.json",
    description="What training came to; written by `train`.",
)

EVALUATE = DataFrameSchema(
    {
        "val_bpb": number("bits per byte of the validation split: the result", low=0),
        "ngram_bpb": number("the same of a byte n-gram model: the baseline", low=0),
        "gain_over_ngram": number("ngram_bpb − val_bpb; negative when the model is worse"),
        "documents": number("documents judged", low=1, whole=True),
        "bytes": number("their UTF-8 bytes", low=1, whole=True),
        "tokens": number("their tokens", low=1, whole=True),
        "probe.rows": number("rows on which the look-ahead probe ran", low=0, whole=True),
        "probe.repeated_rows": number("rows asked twice, in another order", low=0, whole=True),
        "probe.tolerance_nats": number("how far an answer may move, nats of one target", low=0),
        "probe.verdict": text("what the probe found"),
        "isolation": text("what keeps the candidate from the judge's data", choices=("weak", "container")),
    },
    name="metrics/evaluate.json",
    description="What the sealed judge found; written by `evaluate`.",
)

SCHEMAS: Mapping[str, DataFrameSchema] = {
    "prepare": PREPARE,
    "tokenizer": TOKENIZER,
    "pack": PACK,
    "train": TRAIN,
    "evaluate": EVALUATE,
}


def validate(stage: str, value: Any, *, where: Path | str | None = None) -> dict[str, Any]:
    """`value`, unchanged, when it is what `metrics/<stage>.json` may hold. Raises InputError or TableError."""
    return records.check(value, _schema(stage), where or f"metrics/{stage}.json", do=_remedy(stage))


def read(path: Path) -> dict[str, Any]:
    """The metrics in `path`; its name names the stage. Raises InputError or TableError."""
    return records.read(path, _schema(path.stem), do=_remedy(path.stem))


def _schema(stage: str) -> DataFrameSchema:
    if stage not in SCHEMAS:
        near = difflib.get_close_matches(stage, SCHEMAS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"the stages are {', '.join(SCHEMAS)}"
        raise InputError("metrics", f"no stage {stage!r} has a schema", hint)
    return SCHEMAS[stage]


def _remedy(stage: str) -> str:
    return f"run `dvc repro --force {stage}` to write it anew"
