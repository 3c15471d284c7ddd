"""Hold a table against its schema: every fault at once, on one screen, each with its line, value, rule and remedy.

Knows pandera's failures; refuses to know where a table comes from or what it is about.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pandas as pd
from pandera.errors import SchemaErrors
from pandera.pandas import DataFrameSchema

from ratchet.core.errors import InputError
from ratchet.tables import rules

MAX_VALUES = 3
MAX_ROWS = 5
MAX_GROUPS = 12
MAX_VALUE_LENGTH = 40
MAX_SCANNED = 1000
NO_NUMBER = "be a number"

RowName = Callable[[list[int]], str]
"""Row positions (0-based) of a table → where a person finds them: `lines 3, 7`, `rows 0, 1`; nothing for one object."""


class TableError(InputError):
    """A table that breaks its schema. One line for the first fault, one indented line for each that follows."""

    def __init__(self, where: object, faults: list[str], do: str) -> None:
        first, *others = faults
        more = f" (and {len(others)} more, below)" if others else ""
        super().__init__(where, first + more, do)
        self.faults = faults

    def __str__(self) -> str:
        others = self.faults[1:]
        lines = [f"  {fault}" for fault in others[: MAX_GROUPS - 1]]
        if len(others) >= MAX_GROUPS:
            lines.append(f"  … and {len(others) - MAX_GROUPS + 1} more")
        return "\n".join([super().__str__(), *lines])


def file_lines(rows: list[int]) -> str:
    """Name rows of a file that has one header line: the first row is line 2."""
    return ("line " if len(rows) == 1 else "lines ") + ", ".join(str(row + 2) for row in rows)


def row_numbers(rows: list[int]) -> str:
    """Name rows of a table without lines (parquet), counted from 0."""
    return ("row " if len(rows) == 1 else "rows ") + ", ".join(map(str, rows))


def record_numbers(rows: list[int]) -> str:
    """Name records of a JSON list, counted from 1."""
    return ("record " if len(rows) == 1 else "records ") + ", ".join(str(row + 1) for row in rows)


def conform(
    frame: pd.DataFrame,
    schema: DataFrameSchema,
    where: Path | str,
    *,
    rows: RowName,
    do: str,
    noun: Literal["column", "key"] = "column",
) -> pd.DataFrame:
    """`frame` with the schema's types (whole numbers int64, numbers float64) and a fresh index.

    Raises TableError with every fault, grouped by column and rule: how many, up to three values, up to five rows.
    """
    frame = frame.reset_index(drop=True)
    try:
        checked = schema.validate(frame, lazy=True)
    except SchemaErrors as error:
        raise TableError(where, _faults(error.failure_cases, frame, rows, noun), do) from None
    for name, column in schema.columns.items():
        if rules.is_whole(column) and name in checked and not checked[name].hasnans:
            checked[name] = checked[name].astype("int64")
    return checked


def _faults(cases: pd.DataFrame, frame: pd.DataFrame, rows: RowName, noun: str) -> list[str]:
    """One sentence for each (column, rule) of pandera's failure cases."""
    is_missing = cases["check"] == "column_in_dataframe"
    sentences = [_missing_fault(cases[is_missing]["failure_case"].astype(str).tolist(), frame, noun)]
    cases = cases[~is_missing].assign(check=cases["check"].map(_rule))
    untyped = set(cases[cases["check"] == NO_NUMBER]["column"])
    for (column, rule), group in cases.groupby(["column", "check"], sort=False):
        # A column that is no number fails every later rule too: the cause alone is said.
        if rule == NO_NUMBER or column not in untyped:
            sentences.append(_group_fault(str(column), str(rule), group, frame, rows, noun))
    return [sentence for sentence in sentences if sentence]


def _rule(check: object) -> str:
    """The rule behind pandera's name of a check, as it follows the word `must`."""
    if str(check).startswith(("coerce_dtype", "dtype(")):
        return NO_NUMBER
    return {"not_nullable": "hold a value"}.get(str(check), f"be {check}")


def _missing_fault(missing: list[str], frame: pd.DataFrame, noun: str) -> str:
    there = ", ".join(map(str, frame.columns)) or "none"
    return f"{noun} {', '.join(missing)} is missing (present: {there})" if missing else ""


def _group_fault(column: str, rule: str, group: pd.DataFrame, frame: pd.DataFrame, rows: RowName, noun: str) -> str:
    positions = group["index"].dropna().astype(int).drop_duplicates().tolist()
    # The value as it stands in the file, not as pandera has cast it.
    values = dict.fromkeys(_value(value) for value in frame[column].iloc[positions[:MAX_SCANNED]])
    shown = ", ".join(list(values)[:MAX_VALUES]) + (", …" if len(values) > MAX_VALUES else "")
    at = rows(positions[:MAX_ROWS])
    total = f" ({len(positions)} in all)" if len(positions) > MAX_ROWS else ""
    return f"{noun} {column}{', ' + at if at else ''}{total}: {shown} (must {rule})"


def _value(value: object) -> str:
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return "empty"
    written = repr(value) if isinstance(value, str) else str(value)
    return written if len(written) <= MAX_VALUE_LENGTH else written[: MAX_VALUE_LENGTH - 1] + "…"
