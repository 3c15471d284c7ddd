"""What differs between two versions, and how it is said in words and to a program. B is measured against A.

Refuses to know how it is laid out: `compare` does for a terminal and a browser, `compare_markdown` for a pull request.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

import numpy as np

from ratchet.commands.versions import ARENA, Version
from ratchet.core.errors import InputError
from ratchet.loops.research.compare import Gain, compare
from ratchet.tables.intervals import Figure, figures

LOSS = "train"
"""The course that is shown as numbers and as a picture."""
CURVE_POINTS = 10
SEED = 0
"""Of the bootstrap: asked twice, it answers the same."""
ABSENT = "-"


@dataclass(frozen=True)
class Comparison:
    """`params`: name, A's value, B's, where they differ. `figures`: every metric, with its 95 % interval if it has one.

    `gain`: bits per byte that B saves. `curves`: step, A's loss, B's, at shared steps. `diff`: of the arena, unified.
    `without`: what was not compared.
    """

    params: list[tuple[str, Any, Any]]
    figures: list[tuple[str, Figure, Figure]]
    gain: Gain | None
    curves: list[tuple[int, float, float]]
    diff: list[str]
    without: list[str]


def between(a: Version, b: Version) -> Comparison:
    """All that differs between two versions. Documents that are not the same are said, and no gain is given."""
    without = [f"{side.name}: {what}" for side in (a, b) for what in side.missing]
    gain: Gain | None = None
    if a.documents is not None and b.documents is not None:
        try:
            gain = compare(a.documents, b.documents, seed=SEED, name="ratchet compare")
        except InputError as error:
            without.append(str(error))
    return Comparison(
        params=[row for row in joined(a.params, b.params) if row[1] != row[2]],
        figures=both_figures(a, b),
        gain=gain,
        curves=shared_points(a, b),
        diff=diff(a, b),
        without=without,
    )


def both_figures(a: Version, b: Version) -> list[tuple[str, Figure, Figure]]:
    """Every metric of either with its interval, by name; a figure without a value where one has none."""
    one, other, none = figures(a.metrics | a.intervals), figures(b.metrics | b.intervals), Figure(None)
    return [(name, one.get(name, none), other.get(name, none)) for name in dict.fromkeys([*one, *other])]


def joined(first: dict[str, Any], second: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Every name of either with both values, in A's order, then B's; `-` where one has none."""
    return [(name, first.get(name, ABSENT), second.get(name, ABSENT)) for name in dict.fromkeys([*first, *second])]


def shared_points(a: Version, b: Version) -> list[tuple[int, float, float]]:
    """Both losses, each the mean of the steps since the last point, at up to CURVE_POINTS steps that both have."""
    if LOSS not in a.courses or LOSS not in b.courses:
        return []
    one, other = (side.courses[LOSS].set_index("x")["y"] for side in (a, b))
    steps = np.sort(np.intersect1d(one.index, other.index))
    return (
        [
            (int(part[-1]), float(one.loc[part].mean()), float(other.loc[part].mean()))
            for part in np.array_split(steps, min(CURVE_POINTS, len(steps)))
            if len(part)
        ]
        if len(steps)
        else []
    )


def diff(a: Version, b: Version) -> list[str]:
    """The arena's unified diff, without line ends."""
    if a.arena is None or b.arena is None:
        return []
    one, other = a.arena.splitlines(), b.arena.splitlines()
    return list(difflib.unified_diff(one, other, f"{ARENA} ({a.name})", f"{ARENA} ({b.name})", lineterm=""))


def sentence(gain: Gain) -> str:
    """The gain in words."""
    return (f"B saves {gain.gain:+.6f} bits per byte over A on the same documents "
            f"(95 % {gain.low:+.6f} to {gain.high:+.6f}, paired bootstrap)")  # fmt: skip


def cells(name: str, one: Figure, other: Figure) -> tuple[str, str, str, str]:
    """A metric as a row of a table: its name, A's figure, B's, and how far they are apart."""
    told, against = (ABSENT if figure.value is None else str(figure) for figure in (one, other))
    return name, told, against, difference(one.value, other.value)


def difference(one: Any, other: Any) -> str:
    """B minus A of two numbers; nothing for anything else."""
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (one, other)):
        return f"{other - one:+.6g}"
    return ""


def as_plain(a: Version, b: Version, found: Comparison) -> dict[str, Any]:
    """The comparison for a program. A metric that a side lacks is null there; `a_interval` and `b_interval` stand
    beside it where there is one."""
    sides = {key: {"name": side.name, "what": side.what} for key, side in (("a", a), ("b", b))}
    params = {name: {"a": one, "b": other} for name, one, other in found.params}
    metrics = {name: _plain("a", one) | _plain("b", other) for name, one, other in found.figures}
    gain = None if found.gain is None else vars(found.gain)
    curves = [{"step": step, "a": one, "b": other} for step, one, other in found.curves]
    told = {"params": params, "metrics": metrics, "gain": gain, "curves": curves, "diff": found.diff}
    return {**sides, **told, "not_compared": found.without}


def _plain(side: str, figure: Figure) -> dict[str, Any]:
    interval = {} if figure.low is None else {f"{side}_interval": [figure.low, figure.high]}
    return {side: figure.value, **interval}
