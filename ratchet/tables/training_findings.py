"""What a person should see in the tables of a training and of its judgement.

Pure functions of tables; refuses to know files, and who made them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ratchet.tables.findings import Found, Severity, array, slowing, spike_sentence, spikes

JUMP, JUMP_RATIO = 0.1, 4.0
"""A step's change of the learning-rate multiplier, at least, and against those beside it: a schedule's slope may be
steep, and at its bends the change on one side is as large."""
LOSS_SPIKE, LOSS_FLOOR = 1.5, 1.0
"""Times the median of the window; a median under 1 nat counts as 1. Training gives up at 4 (train.explode_ratio)."""
GRADIENT_SPIKE = 10.0
BY_HEART = 1.15
"""Validation loss against the loss that training ended with, from which on the rows are taken to be learnt by heart."""


def in_training(history: pd.DataFrame, steps: pd.DataFrame | None) -> list[Found]:
    """The findings on history.tsv and timing/steps.tsv, as `history` and `timing` read them."""
    found = [schedule_jump(history), near_misses(history)]
    if steps is not None:
        found.append(slowing(steps["tokens_per_s"], "training"))
    return [each for each in found if each]


def in_evaluation(judged: Mapping[str, Any], trained: Mapping[str, Any]) -> list[Found]:
    """The findings on metrics/evaluate.json and metrics/train.json."""
    return [each for each in (under_ngram(judged), by_heart(judged, trained)) if each]


def under_ngram(judged: Mapping[str, Any]) -> Found | None:
    """A model that is worse than the byte n-gram model, which takes seconds to count."""
    if judged["gain_over_ngram"] >= 0:
        return None
    return Found(
        Severity.WARNING,
        "validation is worse than the baseline",
        f"{judged['val_bpb']:.4f} bits per byte, a byte n-gram model has {judged['ngram_bpb']:.4f}",
        "lengthen train.horizon, or look at the loss curve: does it fall at all?",
    )


def by_heart(judged: Mapping[str, Any], trained: Mapping[str, Any]) -> Found | None:
    """Overfitting: rows seen more than once, and a validation loss far above that of training."""
    loss = judged["val_bpb"] * judged["bytes"] * math.log(2) / judged["tokens"]
    if trained["epochs"] <= 1 or loss < BY_HEART * trained["final_loss"]:
        return None
    return Found(
        Severity.WARNING,
        "the training rows are learnt by heart",
        f"{loss:.3f} nats a token on validation, {trained['final_loss']:.3f} in training, after "
        f"{trained['epochs']:.1f} passes over its rows",
        "take more text, a smaller model, or a shorter train.horizon",
    )


def schedule_jump(history: pd.DataFrame) -> Found | None:
    """The first jump of the learning-rate multiplier: a change far steeper than those beside it.

    A rise before the first fall is a warm-up, which may be as steep as it likes. The last change is passed over: in a
    short run a whole warm-down falls into it.
    """
    scale, step = array(history["lr_scale"]), history["step"].to_numpy()
    if len(scale) < 4:
        return None
    change = np.diff(scale)
    size = np.abs(change)
    beside = np.maximum(np.append(size[1:], 0.0), np.insert(size[:-1], 0, 0.0))
    fell = np.concatenate(([False], np.cumsum(change < 0)[:-1] > 0))
    jumps = np.flatnonzero((size >= JUMP) & (size > JUMP_RATIO * beside) & ((change < 0) | fell))
    jumps = jumps[jumps < len(change) - 1]
    if not len(jumps):
        return None
    at = int(jumps[0])
    more = f", and {len(jumps) - 1} more" if len(jumps) > 1 else ""
    return Found(
        Severity.WARNING,
        "the learning rate jumps",
        f"its multiplier goes from {scale[at]:.3g} to {scale[at + 1]:.3g} at step {step[at + 1]:,}{more}",
        "compare it with the arena's schedule(): was the run continued under another horizon or another arena?",
    )


def near_misses(history: pd.DataFrame) -> Found | None:
    """Spikes of the loss or of the gradient that training survived."""
    looked = (("loss", "loss", LOSS_SPIKE, LOSS_FLOOR), ("gradient norm", "grad_norm", GRADIENT_SPIKE, 0.0))
    parts = [
        spike_sentence(name, values, at, history["step"], "step")
        for name, column, ratio, floor in looked
        if len(at := spikes(values := array(history[column]), ratio, floor))
    ]
    if not parts:
        return None
    return Found(
        Severity.WARNING,
        "training came near to failing",
        "; ".join(parts),
        "lower the learning rates, lengthen WARMUP, or clip the gradient in arena/train.py",
    )
