"""Charts as inline SVG that needs no script: two drawings each, wide and narrow, and a table of the same numbers.

Knows shapes and numbers; colours come from the page's style sheet by class, so that light and dark need one drawing.
Refuses to know what a chart is about.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal, NamedTuple

import numpy as np

from ratchet.report import series
from ratchet.report.series import Array

Look = Literal["main", "base", "other", "raw", "faint main", "faint base"]

TABLE_ROWS = 25
READOUT_POINTS = 400


@dataclass(frozen=True)
class Line:
    """One curve: x and y [N], finite."""

    name: str
    x: Array
    y: Array
    look: Look


@dataclass(frozen=True)
class Rule:
    """A value to compare with: a dashed line across the chart, at y for curves and at x for bars."""

    name: str
    value: float
    look: Look


@dataclass(frozen=True)
class Chart:
    """What a chart shows. `key` is its id in the page; `says` its message in one sentence."""

    key: str
    title: str
    says: str
    x_label: str
    y_label: str
    rules: tuple[Rule, ...] = ()
    from_zero: bool = False


class Frame(NamedTuple):
    """A drawing area: size and margins in SVG units, and the data range that it shows."""

    width: int
    height: int
    x: tuple[float, float]
    y: tuple[float, float]
    left: int = 52
    right: int = 22
    top: int = 12
    bottom: int = 42

    def at_x(self, value: float) -> float:
        """The place of a data x."""
        low, high = self.x
        return self.left + (value - low) / (high - low) * (self.width - self.left - self.right)

    def at_y(self, value: float) -> float:
        """The place of a data y."""
        low, high = self.y
        return self.height - self.bottom - (value - low) / (high - low) * (self.height - self.top - self.bottom)


SIZES = {"wide": (760, 300, 800, 8), "narrow": (360, 260, 300, 4)}
"""Name → width and height, points of a curve, ticks across. The style sheet shows one of them."""


def line_chart(chart: Chart, lines: Sequence[Line]) -> str:
    """A figure with curves over a common x."""
    x_range = (float(min(line.x[0] for line in lines)), float(max(line.x[-1] for line in lines)))
    if x_range[0] == x_range[1]:
        x_range = (x_range[0] - 1, x_range[1] + 1)
    levels = np.array([rule.value for rule in chart.rules], dtype=np.float64)
    y_range = series.span(*(line.y for line in lines), levels, zero=chart.from_zero)
    drawings = ""
    for name, (width, height, points, across) in SIZES.items():
        frame = Frame(width, height, x_range, y_range)
        curves = "".join(curve(frame, line, points) for line in lines)
        rules = "".join(_level(frame, rule) for rule in chart.rules)
        drawings += drawing(chart, frame, name, across, curves + rules)
    names = [(line.name, line.look) for line in lines] + [(rule.name, f"{rule.look} dashed") for rule in chart.rules]
    return figure(chart, drawings, names, lines[0].x, [(line.name, line.y) for line in lines])


def bar_chart(chart: Chart, edges: Array, bars: tuple[str, Array], outline: tuple[str, Array]) -> str:
    """A figure with touching bars and the outline of others: `edges` [N + 1], heights [N]; rules stand upright."""
    name, heights = bars
    other_name, other_heights = outline
    levels = [rule.value for rule in chart.rules]
    x_range = (min(float(edges[0]), *levels, float(edges[-1])), max(float(edges[-1]), *levels, float(edges[0])))
    air = (x_range[1] - x_range[0]) * 0.02
    y_range = series.span(heights, other_heights, zero=True)
    drawings = ""
    for size, (width, height, _, across) in SIZES.items():
        frame = Frame(width, height, (x_range[0] - air, x_range[1] + air), y_range)
        shapes = "".join(_bar(frame, *bar) for bar in zip(edges[:-1], edges[1:], heights, strict=True))
        shapes += _stairs(frame, edges, other_heights)
        rules = "".join(_upright(frame, rule) for rule in chart.rules)
        drawings += drawing(chart, frame, size, across, shapes + rules)
    names = [(name, "main"), (other_name, "base"), *((rule.name, f"{rule.look} dashed") for rule in chart.rules)]
    centres = (edges[:-1] + edges[1:]) / 2
    return figure(chart, drawings, names, centres, [bars, outline])


def curve(frame: Frame, line: Line, points: int) -> str:
    """A line through at most about `points` of its points."""
    x, y = series.thin(line.x, line.y, points)
    path = "L".join(f"{frame.at_x(a):.1f} {frame.at_y(b):.1f}" for a, b in zip(x, y, strict=True))
    return f'<path class="curve {line.look}" d="M{path}"/>'


def _level(frame: Frame, rule: Rule) -> str:
    y = frame.at_y(rule.value)
    return stroke(f"rule {rule.look}", frame.left, y, frame.width - frame.right, y)


def _upright(frame: Frame, rule: Rule) -> str:
    x = frame.at_x(rule.value)
    return stroke(f"rule {rule.look}", x, frame.top, x, frame.height - frame.bottom)


def stroke(look: str, x1: float, y1: float, x2: float, y2: float) -> str:
    """A straight line in SVG units."""
    return f'<line class="{look}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _bar(frame: Frame, left: float, right: float, height: float) -> str:
    x, y, width = frame.at_x(left), frame.at_y(height), frame.at_x(right) - frame.at_x(left) - 1
    place = f'x="{x:.1f}" y="{y:.1f}" width="{max(0.5, width):.1f}" height="{frame.at_y(0) - y:.1f}"'
    return f'<rect class="bar main" {place}/>'


def _stairs(frame: Frame, edges: Array, heights: Array) -> str:
    corners = [(edges[0], 0.0), *((x, y) for i, y in enumerate(heights) for x in edges[i : i + 2]), (edges[-1], 0.0)]
    path = "L".join(f"{frame.at_x(x):.1f} {frame.at_y(y):.1f}" for x, y in corners)
    return f'<path class="curve thin base" d="M{path}"/>'


def drawing(chart: Chart, frame: Frame, size: str, across: int, shapes: str) -> str:
    """One SVG with axes; the script reads the data range and the drawing area from its attributes."""
    right, floor = frame.width - frame.right, frame.height - frame.bottom
    return (
        f'<svg class="{size}" viewBox="0 0 {frame.width} {frame.height}" role="img" tabindex="0" '
        f'aria-label="{escape(f"{chart.title}. {chart.says}")}" data-x="{frame.x[0]!r} {frame.x[1]!r}" '
        f'data-box="{frame.left} {right}">{axes(frame, across)}{shapes}'
        f'<line class="cross" y1="{frame.top}" y2="{floor}" hidden/>'
        f"{text('label', (frame.left + right) / 2, frame.height - 6, chart.x_label)}</svg>"
    )


def text(look: str, x: float, y: float, said: str, anchor: str = "middle") -> str:
    """A text in SVG units."""
    return f'<text class="{look}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(said)}</text>'


def axes(frame: Frame, across: int) -> str:
    """The grid, the ticks and their numbers."""
    right, floor = frame.width - frame.right, frame.height - frame.bottom
    parts: list[str] = []
    for value in series.ticks(*frame.y, 6):
        y = frame.at_y(value)
        parts += [stroke("grid", frame.left, y, right, y)]
        parts += [text("tick", frame.left - 8, y + 4, series.short(value), "end")]
    for value in series.ticks(*frame.x, across):
        x = frame.at_x(value)
        parts += [stroke("tickmark", x, floor, x, floor + 5), text("tick", x, floor + 18, series.short(value))]
    return "".join([*parts, stroke("axis", frame.left, floor, right, floor)])


def figure(
    chart: Chart, drawings: str, names: Sequence[tuple[str, str]], x: Array, columns: Sequence[tuple[str, Array]],
    notes: Sequence[str] = (),
) -> str:  # fmt: skip
    """The drawings with their caption, legend, readout, and the numbers twice: for the script and as a table.

    `notes` [N]: a text for each x, which the readout shows.
    """
    legend = "".join(f'<li class="{look}">{escape(name)}</li>' for name, look in names)
    return (
        f'<figure class="chart" id="{escape(chart.key)}"><figcaption>'
        f"<h3>{escape(chart.title)}</h3><p>{escape(chart.says)}</p>"
        f'<div class="under"><span class="y-label">{escape(chart.y_label)}</span>'
        f'<ul class="legend">{legend}</ul></div></figcaption>'
        f'{drawings}<output class="readout" aria-live="polite">&nbsp;</output>'
        f'<script type="application/json">{_numbers(chart, x, columns, notes)}</script>'
        f"<details><summary>The numbers</summary>{_table(chart, x, columns)}</details></figure>"
    )


def _numbers(chart: Chart, x: Array, columns: Sequence[tuple[str, Array]], notes: Sequence[str]) -> str:
    pick = _spread(len(x), READOUT_POINTS)
    value = {
        "label": chart.x_label.partition(" (")[0],
        "x": [_round(number) for number in x[pick]],
        "columns": [{"name": name, "y": [_round(number) for number in y[pick]]} for name, y in columns],
        **({"notes": [notes[at] for at in pick]} if notes else {}),
    }
    return script_json(value)


def script_json(value: object) -> str:
    """JSON that no text within it can end the script element with."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c").replace("\u2028", "\\u2028")


def _table(chart: Chart, x: Array, columns: Sequence[tuple[str, Array]]) -> str:
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in [chart.x_label, *(name for name, _ in columns)])
    all_values = [x, *(y for _, y in columns)]
    rows = "".join(
        f"<tr>{''.join(f'<td>{_round(values[at]):,g}</td>' for values in all_values)}</tr>"
        for at in _spread(len(x), TABLE_ROWS)
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(chart.title)}, numbers">'
        f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _spread(count: int, most: int) -> list[int]:
    """At most `most` of `count` positions, evenly spread, the first and the last among them."""
    return sorted({round(i) for i in np.linspace(0, count - 1, min(count, most))})


def _round(value: float) -> float:
    return float(f"{value:.5g}") if value != int(value) else float(int(value))
