"""Hold one JSON object against a schema: nested keys become dotted columns of a table with one row.

Knows JSON; refuses to know what an object describes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from pandera.pandas import DataFrameSchema

from ratchet.core.errors import InputError
from ratchet.core.fingerprint import flatten
from ratchet.tables.conform import conform


def read(path: Path, schema: DataFrameSchema, *, do: str) -> dict[str, Any]:
    """The object in `path` as it was written, checked. Raises InputError (no file, no JSON, NaN) or TableError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except FileNotFoundError:
        raise InputError(path, "no such file", do) from None
    except UnicodeDecodeError as error:
        raise InputError(path, f"not UTF-8 at byte {error.start}", do) from None
    except json.JSONDecodeError as error:
        raise InputError(path, f"not JSON at line {error.lineno}: {error.msg}", do) from None
    except _NoJsonError as error:
        raise InputError(path, str(error), do) from None
    return check(value, schema, path, do=do)


def check(value: Any, schema: DataFrameSchema, where: Path | str, *, do: str) -> dict[str, Any]:
    """`value`, unchanged, when it is an object that keeps to `schema`. Raises InputError or TableError."""
    if not isinstance(value, Mapping):
        raise InputError(where, f"holds a {type(value).__name__}, not an object", do)
    frame = pd.DataFrame({key: pd.Series([leaf], dtype=object) for key, leaf in flatten(value).items()})
    conform(frame, schema, where, rows=lambda _: "", do=do, noun="key")
    return dict(value)


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
