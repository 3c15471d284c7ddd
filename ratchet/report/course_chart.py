"""The course of a session as SVG for the page: dots, crosses, and the running best as a step line.

Knows shapes; refuses to know the page and where rows come from. progress_plot.py draws the same as PNG.
"""

from __future__ import annotations

import numpy as np

from ratchet.report import progress_plot, series, svg
from ratchet.report.svg import Chart, Frame
from ratchet.tables.improvement import Course, Kind

LEGEND = (
    ("kept", "other dots"),
    ("discarded", "raw dots"),
    ("crashed", "cross"),
    ("running best", "other"),
)
LEFT = 62


def chart(course: Course) -> str:
    """The figure; its table and readout have the numbers and what each experiment tried."""
    told = Chart(
        "research-progress",
        "Research progress",
        progress_plot.sentence(course),
        "experiment",
        "validation bits per byte, lower is better",
    )
    low, high = progress_plot.window(course)
    x_range = (-0.5, max(1.0, len(course.table) - 0.5))
    drawings = ""
    for name, (width, height, _, across) in svg.SIZES.items():
        frame = Frame(width, height + 40, x_range, (low, high), left=LEFT)
        drawings += svg.drawing(told, frame, name, across, _shapes(frame, course))
    scored = course.table.dropna(subset=["val_bpb"])
    score = scored["val_bpb"].to_numpy(np.float64)
    best = scored["best"].fillna(scored["val_bpb"]).to_numpy(np.float64)
    notes = [
        f"{kind}: {progress_plot.label(said)}" for kind, said in zip(scored["kind"], scored["description"], strict=True)
    ]
    x = scored["number"].to_numpy(np.float64)
    if not len(x):
        return f'<p class="note">{progress_plot.sentence(course)}</p>'
    return svg.figure(told, drawings, LEGEND, x, [("bits per byte", score), ("running best", best)], notes)


def cost_chart(course: Course) -> str:
    """Money spent so far, by experiment; nothing when none was."""
    if course.cost is None or not course.cost[-1] > 0:
        return ""
    says = (
        f"{series.short(float(course.cost[-1]))} in all, {course.cost[-1] / max(1, course.experiments):.3g} a proposal"
    )
    told = Chart("research-cost", "Cost so far", says, "experiment", "money", from_zero=True)
    number = course.table["number"].to_numpy(np.float64)
    return svg.line_chart(told, [svg.Line("cumulative cost", number, course.cost, "main")])


def _shapes(frame: Frame, course: Course) -> str:
    low, high = frame.y
    parts = [_best(frame, course)]
    for segment in course.segments[1:]:
        x = frame.at_x(segment.first - 0.5)
        parts.append(svg.stroke("rule base", x, frame.top, x, frame.height - frame.bottom))
    for number, kind, score in course.table[["number", "kind", "val_bpb"]].itertuples(index=False, name=None):
        x = frame.at_x(float(number))
        if kind == Kind.CRASH:
            parts.append(_cross(x, frame.at_y(low)))
        elif kind == Kind.DISCARD and score > high:
            parts.append(f'<path class="mark raw" d="M{x - 4:.1f} {frame.top + 6}l4 -6 4 6"/>')
        elif kind == Kind.DISCARD:
            parts.append(f'<circle class="dot raw" cx="{x:.1f}" cy="{frame.at_y(score):.1f}" r="4"/>')
        else:
            parts.append(f'<circle class="dot other" cx="{x:.1f}" cy="{frame.at_y(score):.1f}" r="5"/>')
    return "".join(parts)


def _cross(x: float, y: float) -> str:
    return f'<path class="mark warn" d="M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"/>'


def _best(frame: Frame, course: Course) -> str:
    paths = ""
    for at, segment in enumerate(course.segments):
        rows = course.table[(course.table["segment"] == at) & course.table["best"].notna()]
        corners = [
            f"{frame.at_x(number):.1f} {frame.at_y(best):.1f}H{frame.at_x(after):.1f}"
            for number, best, after in zip(
                rows["number"], rows["best"], [*rows["number"].iloc[1:], segment.last + 0.5], strict=True
            )
        ]
        paths += f'<path class="curve other" d="M{"L".join(corners)}"/>'
    return paths
