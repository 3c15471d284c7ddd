"""results.tsv: one row an experiment; the published five columns, then ours. Written whole, read back strictly.

Knows the columns; refuses to know how an experiment is run. Ledgers of others are read by `ledgers`.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd
from pandera.pandas import DataFrameSchema

from ratchet.core import atomic
from ratchet.tables import tsv
from ratchet.tables.conform import TableError, conform, file_lines
from ratchet.tables.rules import number, text

STATUSES = ("keep", "discard", "crash")
PUBLISHED = ("commit", "val_bpb", "memory_gb", "status", "description")

SCHEMA = DataFrameSchema(
    {
        "commit": text("commit of the experiment, abbreviated; empty when there was no proposal", nullable=True),
        "val_bpb": number("bits per byte of the validation split; empty for a crash, never 0", low=0, nullable=True),
        "memory_gb": number("peak memory of training, GB; empty when not measured", low=0, nullable=True),
        "status": text("what became of it", choices=STATUSES),
        "description": text("what it tries, on one line"),
        "parent": text("commit that it was made from; empty for the baseline", nullable=True),
        "arena_sha": text("hash of its arena/train.py; empty when there was no proposal", nullable=True),
        "seed": number("seed of its training", low=0, whole=True),
        "steps": number("optimizer steps trained", low=0, whole=True, nullable=True),
        "tokens": number("tokens trained on", low=0, whole=True, nullable=True),
        "seconds": number("seconds of training", low=0, nullable=True),
        "params_m": number("parameters of the model, millions", low=0, nullable=True),
        "delta": number("val_bpb of the incumbent minus this one at the same seed: positive is better", nullable=True),
        "noise": number("sd of val_bpb over the baseline's seeds, as the gate used it", low=0, nullable=True),
        "diff_lines": number("lines of arena/train.py that differ from its parent", low=0, whole=True),
        "reason": text("why it was kept, discarded or crashed"),
        "proposer": text("who proposed it"),
        "isolation": text("what kept its code from the judge's data", choices=("weak", "container")),
        "cost": number("money that proposing it took", low=0),
    },
    name="results.tsv",
    description="One row an experiment, the baseline first, written by `iterate` to data/iterate/results.tsv.",
)

DECIMALS = {"memory_gb": 2, "seconds": 1, "params_m": 3}
"""Places after the point; 6 for every other number that is not whole."""

REMEDY = "run `dvc repro --force iterate`, which writes it anew from the session's ledger"
EMPTY = "the session ended before its first experiment"


def write(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Replace `path` by the table of `rows` (the fields of Trials, in order). The same rows give the same bytes.

    Raises TableError, with `path` untouched, when a row breaks the schema.
    """
    kept = [dict(row) for row in rows]
    table = pd.DataFrame(kept, columns=list(SCHEMA.columns), dtype=object)
    check(table.where(table.notna() & (table != ""), None), path)
    atomic.write_text(path, written(kept))


def written(rows: Iterable[Mapping[str, object]]) -> str:
    """The file's text: a header and one line a row. Nothing in a text can begin a cell, a line or a quotation."""
    lines = ["\t".join(SCHEMA.columns)]
    lines += ["\t".join(_cell(str(name), row.get(str(name))) for name in SCHEMA.columns) for row in rows]
    return "\n".join(lines) + "\n"


def read(path: Path) -> pd.DataFrame:
    """The table in `path`. Raises InputError (missing, no row, torn, ragged) or TableError."""
    table = tsv.read(path, SCHEMA, empty=EMPTY, empty_do="see `ratchet logs iterate`", do=REMEDY)
    return check(table, path)


def check(table: pd.DataFrame, where: Path | str) -> pd.DataFrame:
    """`table` with the schema's types. Raises TableError; a score must be there exactly when it did not crash."""
    table = conform(table, SCHEMA, where, rows=file_lines, do=REMEDY)
    crashed, scored = table["status"] == "crash", table["val_bpb"].notna()
    wrong = {
        "a crash has no val_bpb": table.index[crashed & scored],
        "what did not crash has a val_bpb": table.index[~crashed & ~scored],
        "a val_bpb of 0 is no score": table.index[table["val_bpb"] == 0],
    }
    faults = [
        f"column val_bpb, {file_lines([*map(int, rows[:5])])}: {rule}" for rule, rows in wrong.items() if len(rows)
    ]
    if faults:
        raise TableError(where, faults, REMEDY)
    return table


def one_line(said: str) -> str:
    """`said` as a cell can hold it: one line, no tabs, no control or direction-changing characters, no first quote."""
    if not said.isprintable():  # what is, has no character of the kinds below
        plain = "".join(" " if letter.isspace() else letter for letter in said)
        said = "".join(letter for letter in plain if unicodedata.category(letter) not in ("Cc", "Cf", "Cs", "Co", "Cn"))
    line = (re.sub(" +", " ", said) if "  " in said else said).strip()
    return "'" + line[1:] if line.startswith('"') else line


def _cell(name: str, value: object) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float) and not _is_whole(name):
        return f"{value:.{DECIMALS.get(name, 6)}f}"
    return one_line(str(int(value) if isinstance(value, float) else value))


def _is_whole(name: str) -> bool:
    return bool((SCHEMA.columns[name].metadata or {}).get("whole"))
