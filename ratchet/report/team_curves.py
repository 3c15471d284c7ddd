"""The curves of a team training over env steps, as SVG for the page and as one PNG; a dashed line marks a resume.

Knows shapes; refuses to know the page, and where rows come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ratchet.report import plots, series, svg
from ratchet.report.palette import LIGHT
from ratchet.report.series import Array
from ratchet.report.svg import Chart, Frame, Line, Look
from ratchet.tables.team_history import agents_of

FILE = "team_curves.png"
SIZE_INCHES = (10.0, 7.0)
LEFT = 62
LOOKS: tuple[Look, ...] = ("main", "other", "base")
COLOURS = {"main": LIGHT.main, "other": LIGHT.other, "base": LIGHT.base, "raw": LIGHT.raw}
SMOOTHING = 0.1
X_LABEL = "env step (joint actions rewarded)"


@dataclass(frozen=True)
class Curve:
    """One picture: curves over env steps, with the points and intervals of the looks at held-out items, if any."""

    key: str
    title: str
    says: str
    y_label: str
    lines: tuple[Line, ...]
    points: tuple[Array, Array, Array, Array] | None = None
    cap: int | None = None


def curves(history: pd.DataFrame, max_new_tokens: int) -> list[Curve]:
    """Reward, entropy, completion length, and the divergence where it was measured."""
    found = [_reward(history)]
    for key, title, unit in (
        ("entropy", "Entropy", "nats per token"),
        ("completion_length", "Completion length", "tokens"),
        ("kl", "Divergence from the untrained agents", "nats per completion"),
    ):
        lines = _agents(history, key)
        if lines:
            cap = max_new_tokens if key == "completion_length" else None
            found.append(Curve(f"team-{key.replace('_', '-')}", title, _says(lines), unit, lines, cap=cap))
    return found


def charts(history: pd.DataFrame, resumes: Sequence[int], max_new_tokens: int) -> str:
    """All curves for the page, the reward alone and the others in pairs."""
    first, *others = (_chart(curve, resumes) for curve in curves(history, max_new_tokens))
    return f'{first}<div class="two charts">{"".join(others)}</div>'


def draw(history: pd.DataFrame, resumes: Sequence[int], max_new_tokens: int, *, title: str, dpi: int) -> bytes:
    """team_curves.png. The same table gives the same bytes."""
    return plots.png(lambda figure: _figure(figure, curves(history, max_new_tokens), resumes, title), dpi)


def _reward(history: pd.DataFrame) -> Curve:
    steps, rewards = _arrays(history["env_step"], history["reward_mean"])
    lines = [
        Line("each update", steps, rewards, "raw"),
        Line(plots.mean_label(SMOOTHING), steps, series.smooth(rewards, SMOOTHING), "main"),
    ]
    looks = history.dropna(subset=["eval_reward"])
    points = None
    says = f"training reward {lines[1].y[0]:.3f} → {lines[1].y[-1]:.3f}"
    if len(looks):
        at, mean = _arrays(looks["env_step"], looks["eval_reward"])
        low, high = _arrays(looks["eval_reward_low"].fillna(looks["eval_reward"]),
                            looks["eval_reward_high"].fillna(looks["eval_reward"]))  # fmt: skip
        lines.append(Line("held out", at, mean, "other"))
        points = (at, mean, low, high)
        says += f"; held out {mean[0]:.3f} → {mean[-1]:.3f} (bars: 95 %)"
    return Curve("team-reward", "Reward", says, "reward", tuple(lines), points)


def _agents(history: pd.DataFrame, name: str) -> tuple[Line, ...]:
    """One line for each agent that has values."""
    lines: list[Line] = []
    for agent in range(agents_of(list(history.columns))):
        told = history.dropna(subset=[f"agent{agent}_{name}"])
        if len(told):
            x, y = _arrays(told["env_step"], told[f"agent{agent}_{name}"])
            lines.append(Line(f"agent {agent}", x, y, LOOKS[agent % len(LOOKS)]))
    return tuple(lines)


def _says(lines: Sequence[Line]) -> str:
    return "; ".join(f"{line.name}: {series.short(line.y[0])} → {series.short(line.y[-1])}" for line in lines)


def _arrays(*columns: pd.Series) -> tuple[Array, ...]:
    return tuple(column.to_numpy(dtype=np.float64) for column in columns)


def _chart(curve: Curve, resumes: Sequence[int]) -> str:
    told = Chart(curve.key, curve.title, curve.says, X_LABEL, curve.y_label)
    xs = np.concatenate([line.x for line in curve.lines])
    x_range = (float(xs.min()), float(xs.max()))
    if x_range[0] == x_range[1]:
        x_range = (x_range[0] - 1, x_range[1] + 1)
    spread = [line.y for line in curve.lines] + list(curve.points[2:] if curve.points else ())
    y_range = series.span(*spread)
    drawings = ""
    for size, (width, height, points, across) in svg.SIZES.items():
        frame = Frame(width, height, x_range, y_range, left=LEFT)
        drawings += svg.drawing(told, frame, size, across, _shapes(frame, curve, resumes, points))
    names = [(line.name, line.look) for line in curve.lines]
    names += [("resumed", "base dashed")] if _inside(resumes, x_range) else []
    first = curve.lines[0]
    same = [(line.name, line.y) for line in curve.lines if len(line.x) == len(first.x) and (line.x == first.x).all()]
    return svg.figure(told, drawings, names, first.x, same)


def _inside(resumes: Sequence[int], x_range: tuple[float, float]) -> list[int]:
    return [step for step in resumes if x_range[0] <= step <= x_range[1]]


def _shapes(frame: Frame, curve: Curve, resumes: Sequence[int], points: int) -> str:
    parts = [svg.curve(frame, line, points) for line in curve.lines]
    for step in _inside(resumes, frame.x):
        x = frame.at_x(step)
        parts.append(svg.stroke("rule base", x, frame.top, x, frame.height - frame.bottom))
    for at, mean, low, high in zip(*curve.points, strict=True) if curve.points else ():
        x = frame.at_x(at)
        parts.append(svg.stroke("axis", x, frame.at_y(low), x, frame.at_y(high)))
        parts.append(f'<circle class="dot other" cx="{x:.1f}" cy="{frame.at_y(mean):.1f}" r="4"/>')
    return "".join(parts)


def _figure(figure: Figure, found: Sequence[Curve], resumes: Sequence[int], title: str) -> None:
    figure.set_size_inches(*SIZE_INCHES)
    grid = figure.subplots(2, 2).ravel()
    for axes, curve in zip(grid, found, strict=False):
        _panel(axes, curve, resumes)
    for axes in grid[len(found) :]:
        axes.set_axis_off()
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")


def _panel(axes: Axes, curve: Curve, resumes: Sequence[int]) -> None:
    for line in curve.lines:
        look = {"raw": 0.9, "main": 2.2}.get(line.look, 1.8)
        axes.plot(line.x, line.y, color=COLOURS[line.look], linewidth=look, label=line.name)
    if curve.points:
        at, mean, low, high = curve.points
        bars = np.stack([np.maximum(0, mean - low), np.maximum(0, high - mean)])
        axes.errorbar(at, mean, yerr=bars, fmt="o", color=LIGHT.other, markersize=4, capsize=3, linewidth=1.2)
    if curve.cap is not None:
        axes.axhline(curve.cap, color=LIGHT.line, linewidth=1.2, label=f"cap {curve.cap}")
    for number, step in enumerate(resumes):
        name = "resumed" if number == 0 else None
        axes.axvline(step, color=LIGHT.base, linewidth=1.2, linestyle=(0, (5, 3)), label=name)
    axes.set(xlabel=X_LABEL, ylabel=curve.y_label)
    axes.set_title(curve.title, loc="left", fontsize=11, fontweight="bold")
    axes.legend(loc="best", fontsize=8)
