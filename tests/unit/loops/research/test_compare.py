"""The paired comparison: its figure is exact, its interval covers, and its draws hang on names alone."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from ratchet.core.errors import InputError
from ratchet.loops.research.compare import compare, mean_of, sd


def table(nats: np.ndarray, sizes: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame({"document": np.arange(len(sizes)), "tokens": sizes, "bytes": sizes, "nats": nats})


def pair(gain: float, *, seed: int, documents: int = 80) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Two versions whose true difference is `gain` bits per byte, documents varying."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(50, 500, documents)
    before = sizes * math.log(2) * rng.normal(1.6, 0.2, documents)
    return table(before, sizes), table(before - sizes * math.log(2) * rng.normal(gain, 0.05, documents), sizes)


def test_gain_is_the_difference_of_both_scores() -> None:
    before, after = pair(0.02, seed=1)
    scores = [float(each["nats"].sum()) / (math.log(2) * each["bytes"].sum()) for each in (before, after)]
    assert compare(before, after, seed=1, name="x").gain == pytest.approx(scores[0] - scores[1], abs=1e-12)


def test_interval_covers_the_truth_as_often_as_it_says() -> None:
    gains = [compare(*pair(0.02, seed=seed), seed=seed, name="x") for seed in range(120)]
    covered = sum(gain.low <= 0.02 <= gain.high for gain in gains) / len(gains)
    above = sum(gain.lower_one_sided <= 0.02 for gain in gains) / len(gains)
    assert 0.87 <= covered <= 1
    assert 0.87 <= above <= 0.99


def test_draws_hang_on_seed_and_name_alone() -> None:
    before, after = pair(0.01, seed=3)
    assert compare(before, after, seed=1, name=[1, "a"]) == compare(before, after, seed=1, name=[1, "a"])
    assert compare(before, after, seed=1, name=[1, "a"]) != compare(before, after, seed=1, name=[1, "b"])
    assert compare(before, after, seed=1, name=[1, "a"]) != compare(before, after, seed=2, name=[1, "a"])


def test_other_documents_are_refused() -> None:
    before, _ = pair(0.0, seed=1)
    with pytest.raises(InputError, match="same documents"):
        compare(before, before.iloc[1:], seed=1, name="x")


def test_mean_of_tables_averages_nats() -> None:
    before, after = pair(0.1, seed=2)
    assert mean_of([before, after])["nats"].to_numpy() == pytest.approx((before["nats"] + after["nats"]) / 2)
    assert sd([1.0, 2.0, 3.0]) == 1.0
