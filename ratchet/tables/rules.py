"""The vocabulary of the tables' schemas: what a column may hold, said once for the check and for the page in docs/.

Knows pandera's columns; refuses to know any particular table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd
from pandera.pandas import Check, Column

Order = Literal["any", "rising", "never falling"]


def number(
    description: str,
    *,
    low: float | None = None,
    high: float | None = None,
    whole: bool = False,
    order: Order = "any",
    nullable: bool = False,
    required: bool = True,
) -> Column:
    """A column of finite numbers in [low, high]. `whole` ones are checked as floats: a cast would cut 1.5 to 1."""
    checks = [Check(lambda s: _within(s, low, high, whole=whole), error=_range_text(low, high, whole=whole))]
    if order == "rising":
        checks.append(Check(lambda s: s.diff().fillna(1) > 0, error="greater than in the row above"))
    elif order == "never falling":
        checks.append(Check(lambda s: s.diff().fillna(0) >= 0, error="not less than in the row above"))
    return Column(
        float,
        checks,
        nullable=nullable,
        required=required,
        coerce=True,
        description=description,
        metadata={"whole": whole, "type": "whole number" if whole else "number"},
    )


def count(description: str, *, low: int = 0, order: Order = "any", required: bool = True) -> Column:
    """A column of whole numbers from `low` on."""
    return number(description, low=low, whole=True, order=order, required=required)


def text(description: str, *, choices: Sequence[str] = (), nullable: bool = False, required: bool = True) -> Column:
    """A column of text, one of `choices` where there are any."""
    rule = "one of " + ", ".join(choices) if choices else "text that is not empty"
    check = Check(lambda s: s.isin(choices) if choices else _is_text(s), error=rule)
    return Column(
        object, check, nullable=nullable, required=required, description=description, metadata={"type": "text"}
    )


def flag(description: str, *, nullable: bool = False, required: bool = True) -> Column:
    """A column of true and false; 0 and 1 are no flags."""
    check = Check(lambda s: s.map(lambda value: isinstance(value, bool | np.bool_)), error="true or false")
    return Column(
        object, check, nullable=nullable, required=required, description=description, metadata={"type": "flag"}
    )


def is_whole(column: Column) -> bool:
    """Whether `column`, once checked, is cast to int64."""
    return bool((column.metadata or {}).get("whole"))


def is_text(column: Column) -> bool:
    """Whether `column` holds text, whatever it looks like: a hash of digits alone is no number."""
    return (column.metadata or {}).get("type") == "text"


def _within(values: pd.Series, low: float | None, high: float | None, *, whole: bool) -> pd.Series:
    # Infinity passes pandera's own ge=0: finiteness is part of every rule here.
    good = pd.Series(np.isfinite(values), index=values.index)
    if low is not None:
        good &= values >= low
    if high is not None:
        good &= values <= high
    return good & (values % 1 == 0) if whole else good


def _range_text(low: float | None, high: float | None, *, whole: bool) -> str:
    kind = "a whole number" if whole else "a finite number"
    if low is not None and high is not None:
        return f"{kind} from {low:g} to {high:g}"
    if low is not None:
        return f"{kind}, at least {low:g}"
    return kind if high is None else f"{kind}, at most {high:g}"


def _is_text(values: pd.Series) -> pd.Series:
    return values.map(lambda value: isinstance(value, str) and value.strip() != "").astype(bool)
