"""The numbers behind a drawing: smoothing, thinning, ticks, and numbers as people read them.

Knows arrays; refuses to know what draws them.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def smooth(values: Array, share: float) -> Array:
    """The mean over a window of `share` of the whole series, centred, so that it neither lags nor leads.

    At the start, where losses fall steeply, the window shrinks on both sides alike; at the end it keeps its past.
    `share` 0 gives the values themselves.
    """
    count = len(values)
    index = np.arange(count)
    half = int(share * count / 2)
    first, last = index - np.minimum(half, index), np.minimum(index + np.minimum(half, index), count - 1)
    sums = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    return (sums[last + 1] - sums[first]) / (last + 1 - first)


def thin(x: Array, y: Array, points: int) -> tuple[Array, Array]:
    """At most about `points` of the points: the lowest and the highest of each bucket, so that no spike is lost."""
    if len(x) <= points:
        return x, y
    buckets = np.array_split(np.arange(len(x)), max(1, points // 2))
    keep = sorted({int(pick) for b in buckets for pick in (b[np.argmin(y[b])], b[np.argmax(y[b])])} | {0, len(x) - 1})
    return x[keep], y[keep]


def ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers within [low, high]."""
    if not high > low:
        return [low]
    raw = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.8)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 12) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def span(*arrays: Array, zero: bool = False, margin: float = 0.05) -> tuple[float, float]:
    """The range that an axis needs to show `arrays`, with some air; from 0 when `zero`."""
    finite = np.concatenate([a[np.isfinite(a)] for a in arrays])
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    air = (high - low) * margin or abs(high) * 0.1 or 1.0
    return (0.0, high + air) if zero else (max(0.0, low - air) if low >= 0 else low - air, high + air)


def short(value: float) -> str:
    """`1234567` → `1.23M`, `12345` → `12,345`: three significant digits, no needless zeros."""
    for limit, letter in ((1e9, "B"), (1e6, "M"), (1e5, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if letter == 'k' else limit):.3g}{letter}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def count(number: int, noun: str) -> str:
    """`1 step`, `1,200 steps`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """`754.2` → `12 min 34 s`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, minutes = whole // 3600, whole % 3600 // 60
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole % 60} s"


def bpb_interval(nats: Array, lengths: Array) -> tuple[float, float]:
    """The 95 % interval of Σnats / (ln 2 · Σbytes) over documents drawn at random (delta method for a ratio).

    `nats` [D], `lengths` [D] in bytes. It says how much another sample of documents would move the figure, not how
    much another seed would. With fewer than two documents it is (nan, nan).
    """
    documents, total = len(nats), float(lengths.sum())
    if documents < 2 or total == 0:
        return math.nan, math.nan
    bpb = float(nats.sum()) / math.log(2) / total
    residuals = nats / math.log(2) - bpb * lengths
    half = 1.96 * math.sqrt(documents / (documents - 1) * float((residuals**2).sum())) / total
    return bpb - half, bpb + half
