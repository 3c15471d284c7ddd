"""The figures as PNG, for a README or a paper: the same facts give the same bytes.

Knows matplotlib, without a screen; refuses to know files and the page.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ratchet.report import series
from ratchet.report.facts import Facts
from ratchet.report.palette import LIGHT

SIZE_INCHES = (8.0, 4.5)

FILES = ("training_curve.png", "learning_rate.png", "throughput.png", "val_bpb.png")

STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # travels with matplotlib: the same letters on every machine
    "font.size": 10,
    "text.color": LIGHT.ink,
    "axes.edgecolor": LIGHT.quiet,
    "axes.labelcolor": LIGHT.quiet,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": LIGHT.line,
    "grid.linewidth": 0.8,
    "xtick.color": LIGHT.quiet,
    "ytick.color": LIGHT.quiet,
    "legend.frameon": False,
    "figure.facecolor": LIGHT.card,
    "axes.facecolor": LIGHT.card,
    "path.simplify": True,
}


def draw(facts: Facts, *, smoothing: float, dpi: int) -> dict[str, bytes]:
    """File name → PNG for the four figures. `smoothing` is the share of the run that the bold curves average over."""
    drawings: tuple[Callable[[Figure], None], ...] = (
        lambda figure: _training_curve(figure, facts, smoothing),
        lambda figure: _learning_rate(figure, facts),
        lambda figure: _throughput(figure, facts, smoothing),
        lambda figure: _val_bpb(figure, facts),
    )
    return {name: png(drawing, dpi) for name, drawing in zip(FILES, drawings, strict=True)}


def png(drawing: Callable[[Figure], None], dpi: int, size: tuple[float, float] = SIZE_INCHES) -> bytes:
    """The PNG that `drawing` leaves on a figure of `size` inches, whatever the user's own style is."""
    with mpl.rc_context():
        mpl.rcdefaults()  # not what a user's own matplotlibrc says
        mpl.rcParams.update(STYLE)
        figure = Figure(figsize=size, dpi=dpi, layout="constrained")
        drawing(figure)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})  # the version would change the bytes
    return buffer.getvalue()


def title(axes: Axes, name: str, says: str) -> None:
    """A bold title and, in the line below it, what the picture says."""
    axes.set_title(name, loc="left", fontsize=13, fontweight="bold", pad=24)
    axes.annotate(
        says, (0, 1), (0, 7), xycoords="axes fraction", textcoords="offset points", color=LIGHT.quiet, va="bottom"
    )
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: series.short(value)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: series.short(value)))


def _training_curve(figure: Figure, facts: Facts, smoothing: float) -> None:
    axes = figure.subplots()
    step, loss = facts.history["step"].to_numpy(), facts.history["loss"].to_numpy()
    axes.plot(step, loss, color=LIGHT.raw, linewidth=0.9, label="each step")
    axes.plot(step, series.smooth(loss, smoothing), color=LIGHT.main, linewidth=2.2, label=mean_label(smoothing))
    axes.set_xlabel(step_label(facts))
    axes.set_ylabel("loss, nats per token")
    axes.margins(x=0.01)
    axes.legend(loc="upper right")
    title(axes, "Training loss", training_sentence(facts))


def _learning_rate(figure: Figure, facts: Facts) -> None:
    axes = figure.subplots()
    axes.plot(facts.history["step"], facts.history["lr_scale"], color=LIGHT.other, linewidth=2.2)
    axes.fill_between(facts.history["step"], facts.history["lr_scale"], color=LIGHT.other, alpha=0.10, linewidth=0)
    axes.set(xlabel=step_label(facts), ylabel="multiplier of every learning rate", ylim=(0, 1.06))
    axes.margins(x=0.01)
    title(axes, "Learning-rate schedule", schedule_sentence(facts))


def _throughput(figure: Figure, facts: Facts, smoothing: float) -> None:
    axes = figure.subplots()
    step, speed = facts.steps["step"].to_numpy(), facts.steps["tokens_per_s"].to_numpy()
    axes.plot(step, speed, color=LIGHT.raw, linewidth=0.9, label="each step")
    axes.plot(step, series.smooth(speed, smoothing), color=LIGHT.main, linewidth=2.2, label=mean_label(smoothing))
    median = float(np.median(speed))
    axes.axhline(median, color=LIGHT.base, linewidth=1.2, linestyle=(0, (5, 3)), label=f"median {series.short(median)}")
    axes.set(xlabel="optimizer step", ylabel="tokens per second", ylim=(0, None))
    axes.margins(x=0.01)
    axes.legend(loc="lower right", ncols=3)
    title(axes, "Throughput", speed_sentence(facts))


def _val_bpb(figure: Figure, facts: Facts) -> None:
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[1, 2.4])
    judged = facts.metrics["evaluate"]
    bpb, base = judged["val_bpb"], judged["ngram_bpb"]
    low, high = facts.interval
    above.plot([base], [0], "D", color=LIGHT.base, markersize=8)
    above.plot([low, high], [1, 1], color=LIGHT.main, linewidth=5, alpha=0.35, solid_capstyle="round")
    above.plot([bpb], [1], "o", color=LIGHT.main, markersize=9)
    for value, row, colour in ((base, 0, LIGHT.base), (bpb, 1, LIGHT.main)):
        place = {"xytext": (12, 0), "textcoords": "offset points", "va": "center"}
        above.annotate(
            f"{value:.4f}", (max(value, high if row else value), row), color=colour, fontweight="bold", **place
        )
    above.set_yticks([0, 1], ["byte n-gram", "this model"])
    above.set_ylim(-0.6, 1.6)
    above.grid(axis="x", color=LIGHT.line)
    edges, shares, ngram_shares = bpb_shares(facts)
    below.bar(edges[:-1], shares, width=np.diff(edges), align="edge", color=LIGHT.main, alpha=0.55, linewidth=0)
    below.stairs(ngram_shares, edges, color=LIGHT.base, linewidth=1.3)
    for value, colour in ((base, LIGHT.base), (bpb, LIGHT.main)):
        below.axvline(value, color=colour, linewidth=1.4, linestyle=(0, (5, 3)))
    below.set(xlabel="bits per byte", ylabel="share of the split's bytes, %")
    title(above, "Bits per byte on unseen documents", verdict_sentence(facts))
    above.set_yticks([0, 1], ["byte n-gram", "this model"])


def bpb_shares(facts: Facts) -> tuple[series.Array, series.Array, series.Array]:
    """Edges [bins + 1] of 8 to 40 bins in bits per byte, more for more documents; then the share [bins], in %, of the
    split's bytes that lies in documents of each bin: under the model, under the n-gram model.

    The range covers the middle 99 % of documents under both; those outside are counted in the outermost bins.
    """
    table = facts.documents
    lengths = table["bytes"].to_numpy(np.float64)
    both = [table["bpb"].to_numpy(np.float64), table["ngram_nats"].to_numpy(np.float64) / math.log(2) / lengths]
    low, high = np.quantile(np.concatenate(both), [0.005, 0.995])
    if not high > low:
        low, high = low - 0.5, high + 0.5
    bins = min(40, max(8, round(2 * math.sqrt(len(table)))))
    edges = np.linspace(low, high, bins + 1)
    ours, theirs = (np.histogram(np.clip(values, low, high), edges, weights=lengths)[0] for values in both)
    return edges, 100 * ours / lengths.sum(), 100 * theirs / lengths.sum()


def step_label(facts: Facts) -> str:
    """The label of a step axis, with the tokens of a step where every step has as many."""
    each = facts.history["tokens"].iloc[-1] / facts.history["step"].iloc[-1]
    return f"optimizer step ({each:,.0f} tokens each)" if each == int(each) else "optimizer step"


def mean_label(smoothing: float) -> str:
    """What a bold curve is."""
    return f"mean over {smoothing:.0%} of the run".replace("%", " %")


def training_sentence(facts: Facts) -> str:
    """What the training curve says."""
    trained, last = facts.metrics["train"], facts.history.iloc[-1]
    steps, tokens = series.count(trained["steps"], "step"), series.short(trained["tokens"])
    return (
        f"{steps}, {tokens} tokens, {last['epoch']:.2f} epochs: "
        f"{facts.history['loss'].iloc[0]:.2f} → {trained['final_loss']:.3f} nats per token"
    )


def schedule_sentence(facts: Facts) -> str:
    """What the learning-rate curve says."""
    scale = facts.history["lr_scale"].to_numpy()
    peak = scale.max()
    full = np.flatnonzero(scale >= peak * (1 - 1e-9))
    first, last = int(facts.history["step"].iloc[full[0]]), int(facts.history["step"].iloc[full[-1]])
    return f"at its peak from step {first:,} to {last:,}, ends at {scale[-1]:.3g} of it"


def speed_sentence(facts: Facts) -> str:
    """What the throughput curve says."""
    took = facts.timing
    return (
        f"{series.short(took['tokens_per_s'])} tokens/s over {series.duration(took['training_seconds'])} of training; "
        f"peak memory {took['peak_vram_mb']:,.0f} MB"
    )


def verdict_sentence(facts: Facts) -> str:
    """What the judge found, with the interval of the gain over documents."""
    judged = facts.metrics["evaluate"]
    documents = series.count(judged["documents"], "document")
    side = "below" if judged["gain_over_ngram"] >= 0 else "ABOVE"
    return f"{judged['val_bpb']:.4f}, {gain_and_interval(facts)} {side} the byte n-gram, {documents}"


def gain_and_interval(facts: Facts) -> str:
    """How far model and n-gram are apart in bits per byte, without a sign: `0.0712 (95 %: 0.061 to 0.083)`."""
    gain = facts.metrics["evaluate"]["gain_over_ngram"]
    low, high = facts.gain_interval if gain >= 0 else tuple(-edge for edge in reversed(facts.gain_interval))
    return f"{abs(gain):.4f}" + ("" if math.isnan(low) else f" (95 %: {low:.3f} to {high:.3f})")
