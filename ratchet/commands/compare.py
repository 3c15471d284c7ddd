"""`ratchet compare A B`: two versions side by side: parameters, metrics, curves, code; B is measured against A."""

from __future__ import annotations

from pathlib import Path

from ratchet.commands import compare_markdown, courses, versions
from ratchet.commands.differences import LOSS, Comparison, as_plain, between, cells, difference, sentence
from ratchet.commands.project import enter_project, print_json, print_table, say_next
from ratchet.commands.versions import ARENA, Version
from ratchet.core import atomic
from ratchet.core.errors import InputError
from ratchet.report import comparison, overlay


def run(
    first: str, second: str, *, png: Path | None, html: Path | None, as_json: bool, as_markdown: bool = False
) -> None:
    """Print the comparison of two versions; with `png` also draw their losses, with `html` write all of it as a page.

    Raises InputError.
    """
    project = enter_project()
    a, b = versions.read(first, project), versions.read(second, project)
    found = between(a, b)
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
        print_table(("", "A", "B", "B - A"), [cells(*row) for row in found.figures])
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
