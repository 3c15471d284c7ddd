"""`ratchet compare A B`: two versions side by side: parameters, metrics, curves, code; B is measured against A."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ratchet.commands import compare_markdown, courses, versions
from ratchet.commands.project import enter_project, print_json, print_table, say_next
from ratchet.commands.versions import ARENA, Version
from ratchet.core import atomic
from ratchet.core.errors import InputError
from ratchet.loops.research.compare import Gain
from ratchet.loops.research.compare import compare as paired
from ratchet.report import comparison, overlay
from ratchet.tables.intervals import Figure, figures

CURVE_POINTS = 10
SEED = 0
"""Of the bootstrap: asked twice, it answers the same."""
ABSENT = "-"
LOSS = "train"
"""The course that is shown as numbers and as a picture."""


@dataclass(frozen=True)
class Comparison:
    """`params`, `metrics`: name, A's value, B's; parameters only where they differ. `gain`: bits per byte that B saves.

    `curves`: step, A's loss, B's, at shared steps. `diff`: of the arena, unified. `without`: what was not compared.
    `figures`: the metrics again, each with its 95 % interval where it has one.
    """

    params: list[tuple[str, Any, Any]]
    metrics: list[tuple[str, Any, Any]]
    gain: Gain | None
    curves: list[tuple[int, float, float]]
    diff: list[str]
    without: list[str]
    figures: Sequence[tuple[str, Figure, Figure]] = ()


def run(
    first: str, second: str, *, png: Path | None, html: Path | None, as_json: bool, as_markdown: bool = False
) -> None:
    """Print the comparison of two versions; with `png` also draw their losses, with `html` write all of it as a page.

    Raises InputError.
    """
    project = enter_project()
    a, b = versions.read(first, project), versions.read(second, project)
    found = compare(a, b)
    if png is not None:
        if LOSS not in a.courses or LOSS not in b.courses:
            raise InputError(png, "has nothing to show: one of the two has no curve", "leave --png out")
        atomic.write_bytes(png, overlay.draw({side.name: side.courses[LOSS] for side in (a, b)}))
    if html is not None:
        atomic.write_text(html, page(a, b, found))
    if as_json:
        print_json(as_plain(a, b, found))
        return
    if as_markdown:
        print(compare_markdown.page(a, b, found), end="")
        return
    show(a, b, found)
    for what, path in (("picture", png), ("page", html)):
        if path is not None:
            print(f"{what}: {path}")
    if html is None:
        say_next(f"ratchet compare {first} {second} --html compare.html")


def page(a: Version, b: Version, found: Comparison) -> str:
    """The comparison as one page that needs nothing beside it."""
    sides = (comparison.Side(a.name, a.what), comparison.Side(b.name, b.what))
    drawn = [
        comparison.Pair(kind.title, kind.x, kind.y, a.courses[loop], b.courses[loop], kind.stairs)
        for loop, kind in courses.KINDS.items()
        if loop in a.courses and loop in b.courses
    ]
    gain = None if found.gain is None else (found.gain.gain, found.gain.low, found.gain.high)
    same_code = None if a.arena is None or b.arena is None else not found.diff
    return comparison.build(
        sides, gain=gain, params=found.params, figures=found.figures, curves=drawn, diff="\n".join(found.diff),
        same_code=same_code, without=found.without,
    )  # fmt: skip


def compare(a: Version, b: Version) -> Comparison:
    """All that differs between two versions. Documents that are not the same are said, and no gain is given."""
    without = [f"{side.name}: {what}" for side in (a, b) for what in side.missing]
    gain: Gain | None = None
    if a.documents is not None and b.documents is not None:
        try:
            gain = paired(a.documents, b.documents, seed=SEED, name="ratchet compare")
        except InputError as error:
            without.append(str(error))
    return Comparison(
        params=[row for row in joined(a.params, b.params) if row[1] != row[2]],
        metrics=joined(a.metrics, b.metrics),
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


def show(a: Version, b: Version, found: Comparison) -> None:
    """The comparison on a terminal."""
    print(f"A  {a.name}: {a.what}\nB  {b.name}: {b.what}")
    if found.gain is not None:
        print(f"\n{sentence(found.gain)}")
    if found.params:
        print("\nparameters that differ")
        print_table(("", "A", "B", "B - A"), [(*row, difference(*row[1:])) for row in found.params])
    if found.figures:
        print("\nmetrics, with 95 % intervals where they have one")
        print_table(("", "A", "B", "B - A"), [(name, _cell(one), _cell(other), difference(one.value, other.value))
                                              for name, one, other in found.figures])  # fmt: skip
    if found.curves:
        print("\nmean training loss up to a step")
        print_table(("step", "A", "B", "B - A"), [(step, f"{one:.4f}", f"{other:.4f}", f"{other - one:+.4f}")
                                                  for step, one, other in found.curves])  # fmt: skip
    if found.diff:
        print("\n" + "\n".join(found.diff))
    elif a.arena is not None and b.arena is not None:
        print(f"\n{ARENA} is the same")
    for line in found.without:
        print(f"not compared: {line}")


def sentence(gain: Gain) -> str:
    """The gain in words."""
    return (f"B saves {gain.gain:+.6f} bits per byte over A on the same documents "
            f"(95 % {gain.low:+.6f} to {gain.high:+.6f}, paired bootstrap)")  # fmt: skip


def _cell(figure: Figure) -> str:
    return ABSENT if figure.value is None else str(figure)


def difference(one: Any, other: Any) -> str:
    """B minus A of two numbers; nothing for anything else."""
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (one, other)):
        return f"{other - one:+.6g}"
    return ""


def as_plain(a: Version, b: Version, found: Comparison) -> dict[str, Any]:
    """The comparison for a program."""
    sides = {key: {"name": side.name, "what": side.what} for key, side in (("a", a), ("b", b))}
    named = {
        key: {name: {"a": one, "b": other} for name, one, other in rows}
        for key, rows in (("params", found.params), ("metrics", found.metrics))
    }
    gain = None if found.gain is None else vars(found.gain)
    curves = [{"step": step, "a": one, "b": other} for step, one, other in found.curves]
    return {**sides, **named, "gain": gain, "curves": curves, "diff": found.diff, "not_compared": found.without}
