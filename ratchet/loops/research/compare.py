"""Two judgements of the same documents compared: the gain in bits per byte, and how sure it is, by paired bootstrap.

Knows tables of documents (document, bytes, nats); refuses to know which version they came from and what follows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ratchet.core.errors import InputError
from ratchet.core.seeds import derive

RESAMPLES = 2000
CHUNK_FLOATS = 4_000_000


@dataclass(frozen=True)
class Gain:
    """Bits per byte saved by the second over the first: the figure, and the bounds of its 95 % interval.

    `lower_one_sided` is the bound that the gate asks for: 95 % of resamples lie above it.
    """

    gain: float
    low: float
    high: float
    lower_one_sided: float


def compare(before: pd.DataFrame, after: pd.DataFrame, *, seed: int, name: object) -> Gain:
    """The gain of `after` over `before`. `seed` and `name` (JSON) name the resampling: the same give the same bounds.

    Documents are drawn with replacement, both versions' nats together (paired), and the gain is computed anew from
    each draw (Efron 1979, percentile intervals). Raises InputError when the tables hold other documents.
    """
    if not np.array_equal(before[["document", "bytes"]].to_numpy(), after[["document", "bytes"]].to_numpy()):
        raise InputError("compare", "the judgements are not of the same documents", "judge both on one split")
    saved = (before["nats"].to_numpy() - after["nats"].to_numpy()) / math.log(2)
    sizes = after["bytes"].to_numpy().astype(np.float64)
    drawn = _resampled(saved, sizes, np.random.default_rng(derive(seed, "bootstrap", name)))
    low, lower, high = (float(value) for value in np.quantile(drawn, [0.025, 0.05, 0.975]))
    return Gain(float(saved.sum() / sizes.sum()), low, high, lower)


def _resampled(saved: np.ndarray, sizes: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """The gain of each of RESAMPLES draws of documents; float64 [RESAMPLES]."""
    count = len(saved)
    at_once = max(1, CHUNK_FLOATS // count)
    parts: list[np.ndarray] = []
    for first in range(0, RESAMPLES, at_once):
        chosen_RD = generator.integers(0, count, (min(at_once, RESAMPLES - first), count))
        parts.append(saved[chosen_RD].sum(axis=1) / sizes[chosen_RD].sum(axis=1))
    return np.concatenate(parts)


def mean_of(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """The tables of several seeds as one: each document's mean nats. They must hold the same documents."""
    nats = np.mean([table["nats"].to_numpy() for table in tables], axis=0)
    return tables[0].assign(nats=nats)


def sd(scores: list[float]) -> float:
    """Sample standard deviation of at least two scores."""
    return float(np.std(np.asarray(scores, dtype=np.float64), ddof=1))
