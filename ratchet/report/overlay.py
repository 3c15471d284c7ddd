"""Two versions' training losses in one picture, as PNG.

Knows courses (x, y) and their names; refuses to know where they came from.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from ratchet.report import plots, series
from ratchet.report.palette import LIGHT

SMOOTHING = 0.05
DPI = 144


def draw(histories: Mapping[str, pd.DataFrame]) -> bytes:
    """Each history's loss: every step thin, the mean over `SMOOTHING` of the run bold; the first one in orange."""

    def drawing(figure: Figure) -> None:
        axes = figure.subplots()
        for (name, history), colour in zip(histories.items(), (LIGHT.base, LIGHT.main), strict=True):
            step, loss = history["x"].to_numpy(), history["y"].to_numpy()
            axes.plot(step, loss, color=colour, linewidth=0.8, alpha=0.25)
            axes.plot(step, series.smooth(loss, SMOOTHING), color=colour, linewidth=2.2, label=name)
        axes.set(xlabel="optimizer step", ylabel="loss, nats per token")
        axes.margins(x=0.01)
        axes.legend(loc="upper right")
        plots.title(axes, "Training loss", f"thin: each step; bold: mean over {SMOOTHING:.0%} of the run")

    return plots.png(drawing, DPI)
