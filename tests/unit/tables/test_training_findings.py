"""Each finding on made-up trainings: it fires on what it is for, with its numbers, and is silent beside it."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

import made_result
from ratchet.tables import training_findings
from ratchet.tables.findings import Found, Severity, slowing


def history(steps: int = 200, **columns: object) -> pd.DataFrame:
    """A made-up training, with columns replaced."""
    return made_result.history_frame(steps).assign(**columns)


def arena_schedule(steps: int, warmup: float, warmdown: float, final: float) -> np.ndarray:
    """The multiplier that arena/train.py's schedule gives at each step."""

    def at(progress: float) -> float:
        if progress < warmup:
            return progress / warmup
        return 1.0 if progress < 1 - warmdown else final + (1 - final) * (1 - progress) / warmdown

    return np.array([at(step / steps) for step in range(steps)])


def timing(*speeds: float, each: int = 20) -> pd.DataFrame:
    speed = np.repeat(np.array(speeds, dtype=float), each)
    step = np.arange(1, len(speed) + 1)
    return pd.DataFrame({"step": step, "seconds": np.cumsum(4096 / speed), "tokens_per_s": speed, "memory_mb": 1000.0})


def slow(steps: pd.DataFrame) -> Found | None:
    return slowing(steps["tokens_per_s"], "training")


@pytest.mark.parametrize("steps", [15, 60, 180])
@pytest.mark.parametrize(
    ("warmup", "warmdown", "final"), [(0, 0.5, 0), (0.1, 0.3, 0.1), (0.5, 0.1, 0), (0.02, 1, 0), (0, 0.2, 0.5)]
)
def test_schedule_of_the_arena_never_jumps(steps: int, warmup: float, warmdown: float, final: float) -> None:
    scale = arena_schedule(steps, warmup, warmdown, final)
    assert training_findings.schedule_jump(history(steps, lr_scale=scale)) is None


@pytest.mark.parametrize("stop", [30, 100, 170])
def test_schedule_that_is_restarted_under_another_horizon_jumps(stop: int) -> None:
    """Half of the way down the schedule of 200 steps, the run goes on under that of 400."""
    old, new = arena_schedule(200, 0, 1, 0), arena_schedule(400, 0, 1, 0)
    scale = np.concatenate([old[:stop], new[stop:200]])
    found = training_findings.schedule_jump(history(200, lr_scale=scale))
    if stop == 30:
        assert found is None  # by 0.075: no more than a steep schedule's step
        return
    assert found is not None
    assert found.severity is Severity.WARNING
    assert f"to {new[stop]:.3g} at step {stop + 1}" in found.evidence
    assert "schedule()" in found.do


def test_schedule_that_falls_off_a_cliff_jumps_and_says_how_often() -> None:
    scale = np.repeat([1.0, 0.5, 0.05], 60)
    found = training_findings.schedule_jump(history(180, lr_scale=scale))
    assert found is not None
    assert found.evidence == "its multiplier goes from 1 to 0.5 at step 61, and 1 more"


def test_schedule_too_short_to_tell_is_silent() -> None:
    assert training_findings.schedule_jump(history(3, lr_scale=[1.0, 0.2, 1.0])) is None


def test_near_misses_are_silent_on_a_training_that_goes_well() -> None:
    assert training_findings.near_misses(history()) is None
    assert training_findings.near_misses(history(grad_norm=math.nan)) is None


def test_near_miss_of_the_loss_is_told_with_its_step() -> None:
    frame = history()
    frame.loc[120, "loss"] = 9.0
    found = training_findings.near_misses(frame)
    assert found is not None
    assert found.evidence.startswith("1 spike of the loss, up to 9 at step 121 after a median of 4.")


def test_near_miss_of_the_gradient_is_told_beside_the_loss() -> None:
    frame = history()
    frame.loc[[50, 60], "grad_norm"] = [40.0, 90.0]
    frame.loc[61, "loss"] = 20.0
    found = training_findings.near_misses(frame)
    assert found is not None
    loss, norm = found.evidence.split("; ")
    assert "20 at step 62" in loss
    assert norm.startswith("2 spikes of the gradient norm, up to 90 at step 61")


def test_near_miss_needs_a_history_before_it_and_more_than_a_small_loss() -> None:
    frame = history()
    frame.loc[9, "loss"] = 50.0  # nine before it
    assert training_findings.near_misses(frame) is None
    frame = history()
    frame.loc[10, "loss"] = 50.0
    assert training_findings.near_misses(frame) is not None
    assert training_findings.near_misses(history(loss=[0.1] * 150 + [0.9] * 50)) is None


def test_training_that_slows_down_is_told_and_a_checkpoint_is_not() -> None:
    found = slow(timing(10_000, 9_000, 6_000))
    assert found is not None
    assert found.severity is Severity.NOTE
    assert found.evidence.startswith("from 10,000 to 6,000 tokens/s")
    assert slow(timing(10_000, 9_000, 9_000)) is None
    dips = timing(10_000, 10_000, 10_000)
    dips.loc[40::3, "tokens_per_s"] = 2_000.0
    assert slow(dips) is None


def test_slowing_leaves_the_first_step_and_short_runs_alone() -> None:
    frame = timing(10_000, each=13)
    frame.loc[0, "tokens_per_s"] = 99_000.0
    assert slow(frame) is None
    assert slow(timing(10_000, 1_000, each=6)) is None


def test_judgement_worse_than_the_ngram_model_is_told_with_both() -> None:
    told = {"val_bpb": 2.83, "ngram_bpb": 2.03, "gain_over_ngram": -0.8}
    found = training_findings.under_ngram(told)
    assert found is not None
    assert found.evidence == "2.8300 bits per byte, a byte n-gram model has 2.0300"
    assert training_findings.under_ngram(told | {"gain_over_ngram": 0.0}) is None


@pytest.mark.parametrize(
    ("epochs", "final_loss", "fires"), [(3.0, 3.0, True), (3.0, 3.5, False), (1.0, 3.0, False), (0.7, 1.0, False)]
)
def test_rows_learnt_by_heart_are_told_once_they_were_seen_twice(epochs: float, final_loss: float, fires: bool) -> None:
    """1.5 bits a byte at 3.5 bytes a token are 3.64 nats a token."""
    judged = {"val_bpb": 1.5, "bytes": 3500, "tokens": 1000}
    found = training_findings.by_heart(judged, {"epochs": epochs, "final_loss": final_loss})
    assert (found is not None) is fires
    if found is not None:
        assert found.evidence == "3.639 nats a token on validation, 3.000 in training, after 3.0 passes over its rows"


def test_made_up_training_has_no_findings_and_a_bad_one_has_all() -> None:
    assert training_findings.in_training(history(1200), timing(10_000)) == []
    bad = history(lr_scale=np.repeat([1.0, 0.2], 100))
    bad.loc[150, "loss"] = 30.0
    assert [each.what for each in training_findings.in_training(bad, timing(9, 9, 1))] == [
        "the learning rate jumps",
        "training came near to failing",
        "training slowed down",
    ]
    assert len(training_findings.in_training(bad, None)) == 2
    judged = {"val_bpb": 3.0, "ngram_bpb": 2.0, "gain_over_ngram": -1.0, "bytes": 3500, "tokens": 1000}
    assert len(training_findings.in_evaluation(judged, {"epochs": 9.0, "final_loss": 0.1})) == 2
