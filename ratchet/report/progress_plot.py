"""progress.png: a research session in the published style. Discarded grey, kept green with what they tried, the running
best as a step line, crashes as crosses at the foot, and a line where another baseline begins.

Knows matplotlib; refuses to know files, and which loop the session is of.
"""

from __future__ import annotations

import warnings
from typing import cast

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from ratchet.report import plots, series
from ratchet.report.palette import LIGHT
from ratchet.tables.improvement import Course, Kind

FILE = "progress.png"
SIZE_INCHES = (10.0, 5.6)
LABELS = 24
"""Kept experiments that are named: with more, the largest improvements are."""
LETTERS = 40
KEPT = (Kind.BASELINE, Kind.PROGRESS, Kind.SIMPLER)


def draw(course: Course, *, dpi: int) -> bytes:
    """The PNG. The same course gives the same bytes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a description in a script the font lacks
        return plots.png(lambda figure: _progress(figure, course), dpi)


def sentence(course: Course) -> str:
    """What the picture says."""
    if not course.segments:
        return f"{series.count(course.experiments, 'experiment')}, none kept: there is no baseline"
    last = course.segments[-1]
    kept, crashed = course.count(Kind.PROGRESS, Kind.SIMPLER), course.count(Kind.CRASH)
    again = f" since a new baseline began at {last.first}" if len(course.segments) > 1 else ""
    return (
        f"{series.count(course.experiments, 'experiment')}, {kept} kept, {crashed} crashed: "
        f"{last.baseline:.4f} → {last.best:.4f} bits per byte{again}"
    )


def window(course: Course) -> tuple[float, float]:
    """The range of scores that is worth seeing: all kept ones and the discarded near them.

    An experiment that went badly wrong would press the others to a line; it is drawn at the upper edge instead.
    """
    table = course.table.dropna(subset=["val_bpb"])
    if table.empty:
        return 0.0, 1.0
    kept = table[table["kind"].isin(KEPT)]["val_bpb"].to_numpy(np.float64)
    scores = table["val_bpb"].to_numpy(np.float64)
    if not len(kept):
        return series.span(scores)
    low, high = float(min(kept.min(), scores.min())), float(kept.max())
    reach = high - float(kept.min()) or 2 * float(np.median(np.abs(scores - high))) or 0.01 * abs(high) or 1.0
    high = float(max(scores[scores <= high + 0.6 * reach], default=high))
    return low - 0.10 * (high - low or reach), high + 0.12 * (high - low or reach)


def label(description: str) -> str:
    """A description as a label holds it."""
    return description if len(description) <= LETTERS else description[: LETTERS - 1].rstrip() + "…"


def _progress(figure: Figure, course: Course) -> None:
    figure.set_size_inches(*SIZE_INCHES)
    axes = figure.subplots()
    low, high = window(course)
    axes.set_ylim(low, high)
    axes.set_xlim(-0.5, len(course.table) - 0.5 + 0.08 * len(course.table))
    _points(axes, course, low, high)
    _running_best(axes, course)
    _labels(axes, course)
    for segment in course.segments[1:]:
        axes.axvline(segment.first - 0.5, color=LIGHT.base, linewidth=1.2, linestyle=(0, (5, 3)))
    axes.set(xlabel="experiment", ylabel="validation bits per byte (lower is better)")
    plots.title(axes, "Research progress", sentence(course))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.4f}" if high - low < 0.05 else f"{value:.3f}")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.11), ncols=5, fontsize=9)


def _points(axes: Axes, course: Course, low: float, high: float) -> None:
    table = course.table
    discarded = table[table["kind"] == Kind.DISCARD]
    near, far = discarded[discarded["val_bpb"] <= high], discarded[discarded["val_bpb"] > high]
    axes.plot(near["number"], near["val_bpb"], "o", color=LIGHT.raw, markersize=5, label="discarded", zorder=2)
    edge = {"color": LIGHT.raw, "markersize": 6, "linestyle": "none", "clip_on": False, "zorder": 2}
    if len(far):
        axes.plot(far["number"], np.full(len(far), high), marker="^", label="discarded, above the picture", **edge)
    crashed = table[table["kind"] == Kind.CRASH]
    if len(crashed):
        style = {**edge, "color": LIGHT.warn}
        axes.plot(crashed["number"], np.full(len(crashed), low), marker="x", label="crashed", **style)
    kept = table[table["kind"].isin(KEPT)]
    look = {"markeredgecolor": LIGHT.ink, "markeredgewidth": 0.6, "zorder": 4}
    axes.plot(kept["number"], kept["val_bpb"], "o", color=LIGHT.other, markersize=8, label="kept", **look)


def _running_best(axes: Axes, course: Course) -> None:
    """A step line for each segment: the best so far holds until a better one is kept."""
    for at, segment in enumerate(course.segments):
        rows = course.table[(course.table["segment"] == at) & course.table["best"].notna()]
        x = [*rows["number"], segment.last + 0.5]
        name = "running best" if at == 0 else None
        axes.step(x, [*rows["best"], rows["best"].iloc[-1]], where="post", color=LIGHT.other, linewidth=2, label=name)


def _labels(axes: Axes, course: Course) -> None:
    """What the kept experiments tried, beside them; never as mathematics, whatever signs a description has."""
    named = {hit.number for hit in course.hits(LABELS)} | {segment.first for segment in course.segments}
    kept = cast("pd.DataFrame", course.table[course.table["kind"].isin(KEPT)])
    if len(kept) <= LABELS:
        named |= set(kept["number"])
    for row in kept[kept["number"].isin(named)].to_dict("records"):
        text = axes.annotate(
            label(str(row["description"])),
            (float(row["number"]), float(row["val_bpb"])),
            xytext=(6, 7),
            textcoords="offset points",
            rotation=28,
            fontsize=8,
            color=LIGHT.other,
            ha="left",
            va="bottom",
            annotation_clip=True,
            parse_math=False,
            path_effects=[withStroke(linewidth=2.5, foreground=LIGHT.card)],
            zorder=5,
        )
        text.set_in_layout(False)  # a long one at the right edge would squeeze the picture
