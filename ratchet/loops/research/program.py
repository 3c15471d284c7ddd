"""arena/program.md: prose for the proposer, with an objective in its front matter that binds the gate.

Knows the front matter's keys; refuses to read a word of the prose, which may be in any language.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, FiniteFloat

from ratchet.core.errors import InputError
from ratchet.params import Params, parse_yaml, validate

FENCE = "---"
KnobRange = list[int | float | str]
"""What a search may try of a knob: `[low, high]` of a range, or the choices of a choice."""


@dataclass(frozen=True)
class Objective:
    """`minimise` is val_bpb; `maximum` caps `params_m` (millions of parameters) or `memory_gb` (peak of training)."""

    minimise: str = "val_bpb"
    maximum: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True)
class Program:
    """The page without its front matter (`brief`), the objective, and what it says of the knobs of a `search`.

    `search`: the knobs to turn instead of those in params.yaml, each with what may be tried; None = all it allows.
    """

    brief: str
    objective: Objective
    search: Mapping[str, KnobRange | None] = field(default_factory=dict[str, KnobRange | None])


class _Maximum(Params):
    params_m: FiniteFloat | None = Field(None, gt=0, strict=False, description="parameters, millions")
    memory_gb: FiniteFloat | None = Field(None, gt=0, strict=False, description="peak memory of training, GB")


class _Objective(Params):
    minimise: Literal["val_bpb"] = Field("val_bpb", description="the judge's metric")
    max: _Maximum = Field(default_factory=_Maximum, description="limits that a kept candidate stays within")  # pyright: ignore[reportArgumentType]


class _FrontMatter(Params):
    objective: _Objective = Field(default_factory=_Objective, description="what is minimised, within what")  # pyright: ignore[reportArgumentType]
    search: dict[str, KnobRange | None] = Field(default_factory=dict, description="knobs of the search proposer")


def read_program(path: Path) -> Program:
    """The program at `path`. Raises InputError when it is missing, no UTF-8, or its front matter is wrong."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(path, "no such file", "write what the research is after, or `git checkout` the file") from None
    except UnicodeDecodeError as error:
        raise InputError(path, f"not UTF-8 at byte {error.start}", "save the file as UTF-8") from None
    return parse_program(text, path)


def parse_program(text: str, where: str | Path = "program.md") -> Program:
    """The program in `text`; without a front matter the objective is the lowest val_bpb.

    Raises InputError naming the key, and the nearest valid one, when the front matter is wrong.
    """
    head, brief = _split(text, where)
    try:
        values: Any = parse_yaml(head)
    except yaml.YAMLError as error:
        raise InputError(where, f"the front matter is not YAML: {error}", "mend it, or remove both lines ---") from None
    if values is not None and not isinstance(values, dict):
        what = f"the front matter holds a {type(values).__name__}, not a mapping"
        raise InputError(where, what, "write `objective: {minimise: val_bpb}`, or begin the page with another line")
    front = validate(
        {str(key): value for key, value in (values or {}).items()}, "front matter", _FrontMatter, Path(where)
    )
    maximum = {name: cap for name, cap in front.objective.max.model_dump().items() if cap is not None}
    for name, tried in front.search.items():
        _check_range(name, tried, where)
    return Program(brief, Objective(front.objective.minimise, maximum), front.search)


def _split(text: str, where: object) -> tuple[str, str]:
    """The YAML between a first line `---` and the next one, and the text after it."""
    lines = text.splitlines(keepends=True)
    if not lines or lines[0].rstrip() != FENCE:
        return "", text
    for number, line in enumerate(lines[1:], 1):
        if line.rstrip() == FENCE:
            return "".join(lines[1:number]), "".join(lines[number + 1 :])
    raise InputError(where, "the front matter that line 1 opens never ends", "close it by a line ---")


def _check_range(name: str, tried: KnobRange | None, where: object) -> None:
    bad = [
        value
        for value in tried or ()
        if isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value))
    ]
    if bad or (tried is not None and not tried):
        what = f"search.{name} = {tried!r} names nothing that can be tried"
        raise InputError(where, what, "write [low, high], or the choices, or null for all that the arena allows")
