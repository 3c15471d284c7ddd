"""What a person should see in a training's and in a research session's tables: each finding with numbers and a remedy.

Each is a pure function of tables. Looks at nothing else; refuses to know files, and who made the tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from ratchet.tables.metrics import carries_over

Array = npt.NDArray[np.float64]

JUMP, JUMP_RATIO = 0.1, 4.0
"""A step's change of the learning-rate multiplier, at least, and against those beside it: a schedule's slope may be
steep, and at its bends the change on one side is as large."""
WINDOW, ENOUGH = 50, 10
"""Steps that a spike is measured against, and how many there must be."""
LOSS_SPIKE, LOSS_FLOOR = 1.5, 1.0
"""Times the median of the window; a median under 1 nat counts as 1. Training gives up at 4 (train.explode_ratio)."""
GRADIENT_SPIKE = 10.0
SLOWER, FEW_ROWS = 0.85, 12
"""Median throughput of the last third against the first, at most; the first step, which may compile, is left out."""
FEW_EXPERIMENTS, MANY_EXPERIMENTS = 4, 8
"""A gate that kept all of the first, or none of the second, is told."""
RECENT, STALE = 5, 0.6
"""Of the last experiments, at least so many of them and half of the session, the share that brought nothing new."""


class Severity(StrEnum):
    """How much it matters."""

    WARNING = "warning"
    """The result may be wrong, or the time was lost."""
    NOTE = "note"


class Found(NamedTuple):
    """One finding. `do` begins with a verb."""

    severity: Severity
    what: str
    evidence: str
    do: str


def in_training(history: pd.DataFrame, steps: pd.DataFrame | None) -> list[Found]:
    """The findings on history.tsv and timing/steps.tsv, as `history` and `timing` read them."""
    found = [schedule_jump(history), near_misses(history)]
    if steps is not None:
        found.append(slowing(steps))
    return [each for each in found if each]


def in_research(rows: pd.DataFrame, told: Mapping[str, Any]) -> list[Found]:
    """The findings on results.tsv, as `results` reads it, and metrics/iterate.json."""
    found = [within_noise(rows, told), lost_on_test(told), dead_proposer(rows), one_sided_gate(rows)]
    return [each for each in found if each]


def schedule_jump(history: pd.DataFrame) -> Found | None:
    """The first jump of the learning-rate multiplier: a change far steeper than those beside it.

    A rise before the first fall is a warm-up, which may be as steep as it likes. The last change is passed over: in a
    short run a whole warm-down falls into it.
    """
    scale, step = _array(history["lr_scale"]), history["step"].to_numpy()
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
    loss = _spikes(_array(history["loss"]), LOSS_SPIKE, LOSS_FLOOR)
    norm = _spikes(_array(history["grad_norm"]), GRADIENT_SPIKE, 0.0)
    parts = [
        _spike_sentence(name, history, column, at)
        for name, column, at in (("loss", "loss", loss), ("gradient norm", "grad_norm", norm))
        if len(at)
    ]
    if not parts:
        return None
    return Found(
        Severity.WARNING,
        "training came near to failing",
        "; ".join(parts),
        "lower the learning rates, lengthen WARMUP, or clip the gradient in arena/train.py",
    )


def _spikes(values: Array, ratio: float, floor: float) -> npt.NDArray[np.int64]:
    """Places above `ratio` times the median of the window before them, that median at least `floor`."""
    before = pd.Series(values).rolling(WINDOW, min_periods=ENOUGH).median().shift(1).to_numpy()
    with np.errstate(invalid="ignore"):
        return np.flatnonzero(values > ratio * np.maximum(before, floor))


def _spike_sentence(name: str, history: pd.DataFrame, column: str, at: npt.NDArray[np.int64]) -> str:
    values = _array(history[column])
    highest = int(at[np.argmax(values[at])])
    usual = float(np.nanmedian(values[max(0, highest - WINDOW) : highest]))
    count = f"{len(at)} spike{'s' if len(at) > 1 else ''} of the {name}"
    return (
        f"{count}, up to {values[highest]:.3g} at step {history['step'].iloc[highest]:,} after a median of {usual:.3g}"
    )


def slowing(steps: pd.DataFrame) -> Found | None:
    """Throughput that fell within the run. Medians, so a checkpoint now and then is no fall."""
    speed = _array(steps["tokens_per_s"])[1:]
    if len(speed) < FEW_ROWS:
        return None
    third = len(speed) // 3
    first, last = float(np.median(speed[:third])), float(np.median(speed[-third:]))
    if last > SLOWER * first:
        return None
    return Found(
        Severity.NOTE,
        "training slowed down",
        f"from {first:,.0f} to {last:,.0f} tokens/s, medians of the first and of the last third",
        "look for another process, for swapping and for heat on that machine; the result is the same",
    )


def within_noise(rows: pd.DataFrame, told: Mapping[str, Any]) -> Found | None:
    """Kept as better, with a gain that the noise between seeds makes by itself."""
    threshold = float(told["noise"]["threshold"])
    better = rows[(rows["status"] == "keep") & rows["delta"].notna() & ~rows["reason"].str.startswith("simpler")]
    doubtful = better[better["delta"] <= threshold]
    gain = float(told["gain"])
    whole = told["progress"] > 0 and gain <= threshold
    if not len(doubtful) and not whole:
        return None
    noise = f"seeds alone move it by {threshold:.4f} (sd {told['noise']['sd']:.4f} over {told['noise']['seeds']} seeds)"
    parts = [f"a gain of {gain:.4f} in all"] if whole else []
    if len(doubtful):
        smallest = doubtful["delta"].min()
        parts.append(f"{len(doubtful)} of {len(better)} kept experiments gained no more, the least {smallest:.4f}")
    return Found(
        Severity.WARNING,
        "the noise is larger than the improvement claimed",
        f"{'; '.join(parts)}; {noise}",
        "train both versions with further seeds before you believe it; raise iterate.noise_seeds or the horizon",
    )


def lost_on_test(told: Mapping[str, Any]) -> Found | None:
    """A gain on the validation split that the test split, which no gate has seen, does not show."""
    if carries_over(told) is not False:
        return None
    test = told["test"]
    side = "is worse there" if test["upper"] < 0 else "is not told apart from none"
    return Found(
        Severity.WARNING,
        "the gain does not carry over to the test split",
        f"{told['gain']:.4f} on validation, {test['gain']:.4f} on test (95 %: {test['lower']:.4f} to "
        f"{test['upper']:.4f}): it {side}",
        "do not promote it; judge more rows (iterate.judged_rows: null), for the gate fitted the rows it saw",
    )


def dead_proposer(rows: pd.DataFrame) -> Found | None:
    """The last experiments repeat sources, propose none, or all crash."""
    tried = rows.iloc[1:]
    recent = tried.iloc[-max(RECENT, len(tried) // 2) :]
    if len(recent) < RECENT:
        return None
    sources = rows["arena_sha"]
    repeated = (sources.isna() | sources.duplicated()).loc[recent.index]
    nothing = int((recent["arena_sha"].isna()).sum())
    crashed = int((recent["status"] == "crash").sum())
    said = f"of the last {len(recent)} experiments"
    if crashed == len(recent):
        reasons: Sequence[Any] = recent["reason"].value_counts().index.tolist()
        evidence = f"all of the last {len(recent)} experiments crashed, most often with: {str(reasons[0])[:120]}"
        do = "read their logs (`ratchet logs iterate/N`) and tell the proposer in arena/program.md what to leave alone"
    elif repeated.mean() >= STALE:
        again = int(repeated.sum()) - nothing
        evidence = f"{said} {again} repeated an arena that had been tried and {nothing} proposed none"
        do = "widen iterate.search.knobs, write a new direction into arena/program.md, or change the proposer"
    else:
        return None
    return Found(Severity.WARNING, "the proposer has no new ideas", evidence, do)


def one_sided_gate(rows: pd.DataFrame) -> Found | None:
    """A gate that keeps all or nothing of what it judged."""
    judged = rows.iloc[1:]
    judged = judged[judged["status"] != "crash"]
    kept = int((judged["status"] == "keep").sum())
    if kept == len(judged) >= FEW_EXPERIMENTS:
        return Found(
            Severity.WARNING,
            "the gate keeps everything",
            f"all {kept} experiments that it judged were kept",
            "look at the noise (iterate.noise_seeds): an sd that is too small lets everything through",
        )
    if kept == 0 and len(judged) >= MANY_EXPERIMENTS:
        best = judged["delta"].max()
        return Found(
            Severity.NOTE,
            "the gate keeps nothing",
            f"none of {len(judged)} experiments that it judged was kept; the best came {best:+.4f} from the incumbent",
            "lengthen iterate.train.horizon so that differences show, or let the proposer change more at once",
        )
    return None


def _array(values: pd.Series) -> Array:
    return values.to_numpy(dtype=np.float64)
