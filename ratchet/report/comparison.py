"""Two versions side by side as one HTML page, in the look of the report: A in orange, B in blue, B measured against A.

Knows figures, curves and texts; refuses to know where the versions came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ratchet.report import html, markup, series, svg
from ratchet.report.svg import Chart, Frame, Line
from ratchet.tables.intervals import Figure

HERE = Path(__file__).parent
SMOOTHED_FROM, SMOOTHING = 60, 0.05
"""Curves of so many points are drawn thin, and bold as their mean over a share of the run."""
WHISKER = (144.0, 24.0)
"""Width and height of the drawing of two intervals, in SVG units."""


class Side(NamedTuple):
    """One of the two: its name as it was asked for, and what it is."""

    name: str
    what: str


class Pair(NamedTuple):
    """A curve of each: columns x and y, x rising. `stairs`: a value holds until the next one."""

    title: str
    x_label: str
    y_label: str
    a: pd.DataFrame
    b: pd.DataFrame
    stairs: bool = False


def build(
    sides: tuple[Side, Side], *, gain: tuple[float, float, float] | None,
    params: Sequence[tuple[str, Any, Any]], figures: Sequence[tuple[str, Figure, Figure]], curves: Sequence[Pair],
    diff: str, same_code: bool | None, without: Sequence[str],
) -> str:  # fmt: skip
    """The page. `gain`: bits per byte that B saves, with its 95 % interval; None where the two were not judged on the
    same documents. `params`: those that differ. `same_code`: None where one of the two has no arena."""
    parts = [
        ("Metrics", "Every figure of the two, with its 95 % interval where it has one.", _metrics(figures)),
        ("Parameters", "Those that differ.", _params(params)),
        ("Curves", "How each of the two went, over the same axis.", _curves(curves)),
        ("Code", "What B changes in the file that an agent edits.", _code(diff, same_code)),
    ]
    if without:
        parts.append(("Absent", "What one of the two lacks, so that it was not compared.", _list(without)))
    title = f"{sides[0].name} and {sides[1].name}"
    header = f'<header id="result"><h1>Comparison of two versions</h1>{_headline(gain)}{_sides(sides)}</header>'
    foot = "Written by <code>ratchet compare</code>. This page is complete: it loads nothing."
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return html.shell(title, header, parts, foot, style, script)


def _headline(gain: tuple[float, float, float] | None) -> str:
    if gain is None:
        return '<p class="headline">The two were not judged on the same documents: there is no paired gain.</p>'
    value, low, high = gain
    says = (
        f"B saves <strong>{value:.4f} bits per byte</strong> over A on the same documents."
        if value > 0
        else f"B needs <em>{-value:.4f} bits per byte more</em> than A on the same documents."
    )
    clear = low > 0 or high < 0
    badges = [(f"95 %: {low:+.4f} to {high:+.4f}, paired bootstrap over documents", False)]
    badges += [] if clear else [("not told apart from none", True)]
    items = "".join(f"<li{' class=warn' if warn else ''}>{escape(text)}</li>" for text, warn in badges)
    return f'<p class="headline">{says}</p><ul class="badges">{items}</ul>'


def _sides(sides: tuple[Side, Side]) -> str:
    told = zip(("A", "B"), ("base", "main"), sides, strict=True)
    inside = "".join(
        f'<div class="side {look}"><b>{letter}</b><p>{escape(side.name)}<small>{escape(side.what)}</small></p></div>'
        for letter, look, side in told
    )
    return f'<div class="sides">{inside}</div>'


def _metrics(figures: Sequence[tuple[str, Figure, Figure]]) -> str:
    """Those that differ in a table that filters, the others behind a summary."""
    other = [row for row in figures if row[1] != row[2]]
    same = [row for row in figures if row[1] == row[2]]
    table = markup.plain_table(
        ("Metric", "A", "B", "B − A", "95 %"), map(_metric, other), caption="Metrics that differ", numbers=True
    )
    shown = markup.searchable(table, "metrics", len(other)) if other else '<p class="hint">No figure differs.</p>'
    if same:
        rows = ((_name(name), _value(one)) for name, one, _ in same)
        equal = markup.plain_table(("Metric", "Both"), rows, caption="Metrics that are equal", numbers=True)
        shown += markup.details(f"{series.count(len(same), 'figure')} that are equal", equal)
    return f'<div class="versus">{shown}</div>'


def _metric(row: tuple[str, Figure, Figure]) -> tuple[str, ...]:
    name, one, other = row
    return _name(name), _value(one), _value(other), _difference(one.value, other.value), _whiskers(one, other)


def _name(name: str) -> str:
    """A dotted name that may break after each of its parts."""
    return escape(name).replace(".", ".<wbr>").replace("_", "_<wbr>")


def _value(figure: Figure) -> str:
    """The value, and its interval below it."""
    told = escape(_number(figure.value))
    return told if figure.low is None else f"{told}<br><small>{_number(figure.low)} to {_number(figure.high)}</small>"


def _number(value: Any) -> str:
    """A value as a person compares it: four decimals, no more than the figure has."""
    if isinstance(value, float):
        return f"{value:.4f}" if 1e-3 <= abs(value) < 1e3 or value == 0 else f"{value:,.4g}"
    return markup.written(value)


def _difference(one: Any, other: Any) -> str:
    numbers = [value for value in (one, other) if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < 2:
        return ""
    value = numbers[1] - numbers[0]
    return f"{'+' if value > 0 else '−' if value < 0 else ''}{_number(abs(value))}"


def _whiskers(one: Figure, other: Figure) -> str:
    """Both intervals on one scale, A above B; nothing where neither has one."""
    both = ((one, "base", 7.0), (other, "main", 17.0))
    sides = [(figure, look, y) for figure, look, y in both if figure.low is not None]
    if not sides:
        return ""
    ends = [end for figure, _, _ in sides for end in (figure.low, figure.high) if end is not None]
    low, width = min(ends), (max(ends) - min(ends)) or 1.0

    def at(value: float) -> float:
        return 6 + (value - low) / width * (WHISKER[0] - 12)

    shapes = "".join(
        f'<g class="{look}">{svg.stroke(look, at(figure.low or 0.0), y, at(figure.high or 0.0), y)}'
        f'<circle cx="{at(float(figure.value)):.1f}" cy="{y}" r="3.6"/></g>'
        for figure, look, y in sides
    )
    box, says = f"0 0 {WHISKER[0]:g} {WHISKER[1]:g}", escape(f"A {one}; B {other}")
    return f'<svg class="whisker" viewBox="{box}" role="img" aria-label="{says}">{shapes}</svg>'


def _params(params: Sequence[tuple[str, Any, Any]]) -> str:
    if not params:
        return '<p class="hint">No parameter differs.</p>'
    rows = ((_name(name), *(escape(markup.written(side)) for side in pair)) for name, *pair in params)
    table = markup.plain_table(("Parameter", "A", "B"), rows, caption="Parameters that differ")
    return f'<div class="versus">{table}</div>'


def _curves(curves: Sequence[Pair]) -> str:
    if not curves:
        return '<p class="hint">The two have no curve of the same kind.</p>'
    first, *others = map(_chart, curves)
    beside = f'<div class="two charts">{"".join(others)}</div>' if others else ""
    return f'<div class="curves">{first}{beside}</div>'


def _chart(pair: Pair) -> str:
    """Both curves over one axis; the readout and the table give both at each x that lies in both."""
    a, b = _line("A", pair.a, "base"), _line("B", pair.b, "main")
    last = f"ends at {_number(float(a.y[-1]))} in A and at {_number(float(b.y[-1]))} in B"
    if np.array_equal(a.x, b.x) and np.array_equal(a.y, b.y):
        last = f"the same in both; ends at {_number(float(a.y[-1]))}"
    told = Chart(f"compare-{pair.title.lower().replace(' ', '-')}", pair.title, last, pair.x_label, pair.y_label)
    x_range = (min(a.x[0], b.x[0]), max(a.x[-1], b.x[-1]))
    frame_x = (float(x_range[0]), float(x_range[1])) if x_range[1] > x_range[0] else (x_range[0] - 1, x_range[1] + 1)
    y_range = series.span(a.y, b.y)
    drawings = ""
    for name, (width, height, points, across) in svg.SIZES.items():
        frame = Frame(width, height, frame_x, y_range)
        drawings += svg.drawing(
            told, frame, name, across, "".join(_shapes(frame, line, points, pair.stairs) for line in (a, b))
        )
    x = np.union1d(a.x, b.x)
    both = x[(x >= max(a.x[0], b.x[0])) & (x <= min(a.x[-1], b.x[-1]))]
    x = both if len(both) else x
    columns = [(line.name, np.interp(x, line.x, line.y)) for line in (a, b)]
    return svg.figure(told, drawings, [("A", "base"), ("B", "main")], x, columns)


def _line(name: str, side: pd.DataFrame, look: svg.Look) -> Line:
    return Line(name, side["x"].to_numpy(float), side["y"].to_numpy(float), look)


def _shapes(frame: Frame, line: Line, points: int, stairs: bool) -> str:
    """The curve; one of many points thin, and its mean bold."""
    if stairs:
        return svg.curve(frame, Line(line.name, np.repeat(line.x, 2)[1:], np.repeat(line.y, 2)[:-1], line.look), points)
    if len(line.x) < SMOOTHED_FROM:
        return svg.curve(frame, line, points)
    faint: svg.Look = "faint base" if line.look == "base" else "faint main"
    smooth = Line(line.name, line.x, series.smooth(line.y, SMOOTHING), line.look)
    return svg.curve(frame, Line(line.name, line.x, line.y, faint), points) + svg.curve(frame, smooth, points)


def _code(diff: str, same: bool | None) -> str:
    if same is None:
        return '<p class="hint">One of the two has no arena to compare.</p>'
    return '<p class="hint">The arena is the same.</p>' if same else f'<div class="panel">{markup.diff(diff)}</div>'


def _list(lines: Sequence[str]) -> str:
    return f'<ul class="hint">{"".join(f"<li>{escape(line)}</li>" for line in lines)}</ul>'
