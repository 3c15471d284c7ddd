"""Read JSON objects, one or a list; hold one against a schema: nested keys become dotted columns of one row.

Knows JSON; refuses to know what an object describes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pandas as pd
from pandera.pandas import DataFrameSchema

from ratchet.core.errors import InputError
from ratchet.core.fingerprint import flatten
from ratchet.tables.conform import conform, record_numbers


def read(path: Path, schema: DataFrameSchema, *, do: str) -> dict[str, Any]:
    """The object in `path` as it was written, checked. Raises InputError (no file, no JSON, NaN) or TableError."""
    return check(_value(path, do, do), schema, path, do=do)


def read_rows(path: Path, *, do: str, log: str) -> list[dict[str, Any]]:
    """The list of objects in `path`. Raises InputError; when it is missing or cut off, that says to read `log`."""
    value = _value(path, do, log)
    if not isinstance(value, list):
        raise InputError(path, f"holds a {type(value).__name__}, not a list of records", do)
    for place, each in enumerate(cast("list[Any]", value)):
        if not isinstance(each, dict):
            what = f"{record_numbers([place])} is a {type(each).__name__}, not an object"
            raise InputError(path, what, do)
    return cast("list[dict[str, Any]]", value)


def check(value: Any, schema: DataFrameSchema, where: Path | str, *, do: str) -> dict[str, Any]:
    """`value`, unchanged, when it is an object that keeps to `schema`. Raises InputError or TableError."""
    if not isinstance(value, Mapping):
        raise InputError(where, f"holds a {type(value).__name__}, not an object", do)
    frame = pd.DataFrame({key: pd.Series([leaf], dtype=object) for key, leaf in flatten(value).items()})
    conform(frame, schema, where, rows=lambda _: "", do=do, noun="key")
    return dict(value)


def _value(path: Path, do: str, log: str) -> Any:
    """The JSON in `path`. `log`: what to read when it is missing or cut off, `do` when the run keeps no log of it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except FileNotFoundError:
        raise InputError(path, "no such file", log) from None
    except UnicodeDecodeError as error:
        raise InputError(path, f"not UTF-8 at byte {error.start}", do) from None
    except json.JSONDecodeError as error:
        what = f"not JSON at line {error.lineno}: {error.msg}"
        if log == do:
            raise InputError(path, what, do) from None
        raise InputError(path, f"{what}; it may be cut off", f"{do}; {log}") from None
    except _NoJsonError as error:
        raise InputError(path, str(error), do) from None


class _NoJsonError(Exception):
    """What Python reads as JSON although it is none, or is ambiguous."""


def _refuse_constant(name: str) -> None:
    raise _NoJsonError(f"holds {name}, which is no JSON")


def _unique(items: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(items)
    if len(value) < len(items):
        names = [name for name, _ in items]
        raise _NoJsonError(f"key {next(name for name in names if names.count(name) > 1)} stands twice")
    return value
