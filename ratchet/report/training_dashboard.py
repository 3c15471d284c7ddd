"""training_dashboard.png: what a skill run did on one picture: accuracy, edit budget, tokens, gate decisions, alerts.

Knows matplotlib, without a screen, and the history as a table; refuses to know files.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ratchet.report import series
from ratchet.report.palette import LIGHT
from ratchet.report.plots import png

FILE = "training_dashboard.png"
SIZE_INCHES = (12.0, 7.5)
TITLE_LETTERS = 110
ACTIONS = {
    "accept_new_best": ("new best", "^"),
    "accept": ("accepted", "o"),
    "force_accept": ("forced in", "s"),
    "reject": ("rejected", "x"),
    "skip_no_patches": ("skipped", "."),
}


def draw(frame: pd.DataFrame, *, baseline: float, alerts: Sequence[str] = (), title: str = "", dpi: int = 100) -> bytes:
    """The PNG for `frame`, a history as `ratchet.tables.skill_history` reads it. `baseline`: the seed document's
    validation score on the gate's metric. The same table gives the same bytes."""

    def drawing(figure: Figure) -> None:
        grid = figure.subplots(2, 2, sharex=True, height_ratios=[1.25, 1])
        _accuracy(grid[0, 0], frame, baseline)
        _budget(grid[0, 1], frame)
        _tokens(grid[1, 0], frame)
        _decisions(grid[1, 1], frame)
        _steps(grid, frame)
        said = "\n".join(textwrap.wrap(title or "Skill training", TITLE_LETTERS))
        figure.suptitle(said, x=0.01, ha="left", fontsize=13, fontweight="bold")
        if alerts:
            lines = [line for alert in alerts for line in textwrap.wrap(f"! {alert}", 150)]
            figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=9, color=LIGHT.other)

    return png(drawing, dpi, SIZE_INCHES)


def _accuracy(axes: Axes, frame: pd.DataFrame, baseline: float) -> None:
    step = frame["step"]
    axes.plot(step, frame["rollout_hard"], color=LIGHT.raw, marker=".", linewidth=1.2, label="train, exact match")
    axes.plot(
        step, frame["candidate_gate_score"], color=LIGHT.other, marker=".", linewidth=1.2, label="validation, candidate"
    )
    axes.step(step, frame["best_score"], color=LIGHT.main, linewidth=2.4, where="post", label="validation, best")
    axes.axhline(baseline, color=LIGHT.base, linewidth=1.4, linestyle=(0, (5, 3)), label="seed document")
    axes.set(ylim=(-0.03, 1.03), ylabel=f"accuracy ({frame['gate_metric'].iloc[0]})")
    axes.legend(loc="best", fontsize=9)
    gain = frame["best_score"].iloc[-1] - baseline
    _title(axes, f"Accuracy: validation {baseline:.3f} → {frame['best_score'].iloc[-1]:.3f} ({gain:+.3f})")


def _budget(axes: Axes, frame: pd.DataFrame) -> None:
    axes.step(frame["step"], frame["edit_budget"], color=LIGHT.main, linewidth=2.2, where="mid", label="budget")
    axes.bar(
        frame["step"], frame["edit_apply_summary.applied"], color=LIGHT.raw, width=0.6, linewidth=0, label="applied"
    )
    axes.set(ylim=(0, None), ylabel="edits a step")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="best", fontsize=9)
    _title(axes, f"Edit budget: {frame['edit_budget'].iloc[0]} → {frame['edit_budget'].iloc[-1]}")


def cumulative_tokens(frame: pd.DataFrame) -> dict[str, pd.Series]:
    """Role → tokens of all steps up to each, both directions."""
    return {
        role: (frame[f"tokens.{role}.prompt_tokens"] + frame[f"tokens.{role}.completion_tokens"]).cumsum()
        for role in ("rollout", "analyst")
    }


def _tokens(axes: Axes, frame: pd.DataFrame) -> None:
    found = cumulative_tokens(frame)
    axes.stackplot(
        frame["step"], *found.values(), labels=("agent", "optimizer"), colors=(LIGHT.main, LIGHT.other), alpha=0.55
    )
    axes.set(ylim=(0, None), ylabel="tokens, cumulative")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: series.short(value)))
    axes.legend(loc="upper left", fontsize=9)
    total = sum(float(values.iloc[-1]) for values in found.values())
    _title(axes, f"Tokens: {series.short(total)} in {series.count(len(frame), 'step')}")


def _decisions(axes: Axes, frame: pd.DataFrame) -> None:
    names = [name for name in ACTIONS if (frame["action"] == name).any()]
    for row, name in enumerate(names):
        at = frame.loc[frame["action"] == name, "step"]
        axes.plot(at, [row] * len(at), ACTIONS[name][1], color=LIGHT.main if "accept" in name else LIGHT.base)
    axes.set_yticks(range(len(names)), [ACTIONS[name][0] for name in names])
    axes.set_ylim(-0.6, len(names) - 0.4)
    accepted = int(frame["action"].str.contains("accept").sum())
    _title(axes, f"Gate: {accepted} of {len(frame)} candidates accepted")


def _steps(grid: Sequence[Sequence[Axes]], frame: pd.DataFrame) -> None:
    """Epoch borders on every panel, and where an extension begins."""
    starts = frame.loc[frame["step_in_epoch"] == 1, "step"].iloc[1:]
    for axes in (axes for row in grid for axes in row):
        for start in starts:
            axes.axvline(start - 0.5, color=LIGHT.line, linewidth=1.0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if "extension" in frame and frame["extension"].any():
            first = frame.loc[frame["extension"].astype(bool), "step"].iloc[0]
            axes.axvspan(first - 0.5, frame["step"].iloc[-1] + 0.5, color=LIGHT.line, alpha=0.4, linewidth=0)
    for axes in grid[-1]:
        axes.set_xlabel("training step (lines: epochs; shaded: beyond the horizon)")


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=11, fontweight="bold")
