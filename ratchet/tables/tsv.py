"""Read one of our own tab-separated tables, strictly: UTF-8, one header, as many cells in every line, no torn end.

Knows lines and cells; refuses to know what they mean.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pandas as pd
from pandera.pandas import DataFrameSchema

from ratchet.core.errors import InputError
from ratchet.tables import rules
from ratchet.tables.conform import MAX_ROWS, conform, file_lines


def read(path: Path, schema: DataFrameSchema, *, empty: str, empty_do: str, do: str) -> pd.DataFrame:
    """The table in `path`, checked against `schema`.

    `empty` and `empty_do` say what it means that there is no row and what to do then; `do` what to do about a fault.
    Raises InputError (missing, not UTF-8, no row, torn, ragged) or TableError (cells that break the schema).
    """
    lines = _lines(path, do)
    if len(lines) <= 1:
        holds = "holds only a header" if lines else "is empty"
        raise InputError(path, f"{holds}: {empty}", empty_do)
    width = lines[0].count("\t")
    ragged = [number for number, line in enumerate(lines, 1) if line.count("\t") != width]
    if ragged:
        at = file_lines([number - 2 for number in ragged[:MAX_ROWS]])
        cells = lines[ragged[0] - 1].count("\t") + 1
        raise InputError(path, f"{at}: {cells} cells where the header has {width + 1} ({len(ragged)} in all)", do)
    frame = pd.read_csv(
        io.StringIO("\n".join(lines)),
        sep="\t",
        quoting=csv.QUOTE_NONE,
        keep_default_na=False,  # only an empty cell is empty: `nan` is a value, and a wrong one
        na_values=[""],
        dtype={
            str(name): object for name, column in schema.columns.items() if rules.is_text(column)
        },  # a hash of digits
    )
    return conform(frame, schema, path, rows=file_lines, do=do)


def _lines(path: Path, do: str) -> list[str]:
    """The lines of `path`. A last line without its newline was torn by a crash and is refused."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(path, "no such file", do) from None
    except UnicodeDecodeError as error:
        raise InputError(path, f"not UTF-8 at byte {error.start}", do) from None
    if text.strip() and not text.endswith("\n"):
        last = text.rpartition("\n")[2]
        raise InputError(path, f"line {text.count(chr(10)) + 1}: {last[:40]!r} is torn, its end is missing", do)
    return text.removesuffix("\n").split("\n") if text.strip() else []
