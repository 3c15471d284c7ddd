"""The published team trainer's own log: what it sends to W&B, as a checkpoint folder or an export holds it.

Reads its curves as far as they go and says what it had to assume. Refuses to guess: a row that is none is an error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import pandas as pd

from ratchet.core.errors import InputError

STEPS = ("env_step", "_step", "step")
PUBLISHED = {
    "reward_mean": "turn_1/reward_mean",
    "return_mean": "turn_1/expected_return",
    "eval_reward": "eval/turn_1/reward_mean",
}
"""Our names → the published ones. Later turns are logged at steps of their own, so no sum over turns can be had."""
DO = "export the history anew"


class Curves(NamedTuple):
    """A log as a table of `env_step`, `reward_mean`, `return_mean`, `eval_reward`, and what had to be assumed to read
    it, one sentence each."""

    table: pd.DataFrame
    assumed: list[str]


def read(path: Path) -> Curves:
    """The curves in the log `path`: JSON lines, or a JSON list, of rows with a step and `turn_1/reward_mean`,
    `turn_1/expected_return`, `eval/turn_1/reward_mean`.

    Of a value that stands twice the later one counts; a torn last line and the turns after the first are left out.
    Raises InputError when the file is no such log, or no step or no reward can be found.
    """
    rows, assumed = _rows(path)
    step = next((name for name in STEPS if any(name in row for row in rows)), None)
    if step is None:
        raise InputError(path, f"no row has {', '.join(STEPS)}", "export the run's history with its step")
    if step != "env_step":
        assumed.append(f"`{step}` was taken as env_step")
    if any("turn_2/reward_mean" in row for row in rows):
        assumed.append("turns after the first were left out")
    merged: dict[int, dict[str, float]] = {}
    twice = 0
    for row in rows:
        if (at := _number(path, row, step)) is None:
            continue
        if not at.is_integer():
            raise InputError(path, f"{step} is {at}, no whole number", DO)
        read = {ours: _number(path, row, theirs) for ours, theirs in PUBLISHED.items()}
        found = {name: value for name, value in read.items() if value is not None}
        held = merged.setdefault(int(at), {})
        twice += bool(held.keys() & found.keys())
        held |= found
    table = pd.DataFrame([{"env_step": at, **values} for at, values in sorted(merged.items()) if values])
    if table.empty:
        keys = ", ".join(sorted({key for row in rows for key in row})[:12])
        raise InputError(path, f"no row has turn_1/reward_mean (the keys: {keys})", "export the whole history")
    if twice:
        assumed.append(f"{twice} of its rows stood twice: the later one counts")
    return Curves(table.reindex(columns=["env_step", *PUBLISHED]), assumed)


def _number(path: Path, row: Mapping[str, Any], name: str) -> float | None:
    """A value of `row`; None for one that is empty, which an export may write as NaN."""
    value = row.get(name)
    if value is None or value != value:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isinf(value):
        raise InputError(path, f"{name} is {value!r}, no number", DO)
    return float(value)


def _rows(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Its rows, and what was assumed."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(path, "no such file", "give the exported history of a run") from None
    except UnicodeDecodeError as error:
        raise InputError(path, f"not UTF-8 at byte {error.start}", DO) from None
    if text.lstrip().startswith("["):
        try:
            listed = cast("list[Any]", json.loads(text))
        except ValueError as error:
            raise InputError(path, f"is no JSON ({error})", DO) from None
        return [_object(f"{path}: row {number}", value) for number, value in enumerate(listed, 1)], []
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    rows: list[dict[str, Any]] = []
    for number, line in lines:
        try:
            rows.append(_object(f"{path}:{number}", json.loads(line)))
        except ValueError as error:
            if (number, line) != lines[-1]:
                raise InputError(f"{path}:{number}", f"is no JSON ({error})", DO) from None
            return rows, ["the last line was torn and is left out"]
    return rows, []


def _object(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(where, f"is a {type(value).__name__}, no object", DO)
    return cast("dict[str, Any]", value)
