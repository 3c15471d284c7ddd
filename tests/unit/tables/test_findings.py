"""Each finding on made-up tables: it fires on what it is for, with its numbers, and is silent beside it."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

import made_result
import made_session
from ratchet.tables import findings, results
from ratchet.tables.findings import Found, Severity


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


def session(made: list[dict]) -> pd.DataFrame:
    """`made` as results.tsv holds it."""
    table = pd.DataFrame(made, columns=list(results.SCHEMA.columns), dtype=object)
    return results.check(table.where(table.notna() & (table != ""), None), "results.tsv")


def shaped(statuses: str, *, gain: float = 0.02, same: bool = False, reason: str = "") -> list[dict]:
    """A session by letters: k kept, d discarded, c crashed, n no proposal, s kept as simpler; `same`: one source."""
    base = made_session.rows(0)[0]
    made, best = [base], base["val_bpb"]
    for number, letter in enumerate(statuses, 1):
        row = base | {
            "commit": made_session.sha(f"{number}")[:10],
            "parent": base["commit"],
            "arena_sha": "same" if same else f"sha{number}",
            "status": {"k": "keep", "s": "keep", "d": "discard"}.get(letter, "crash"),
            "description": f"idea {number}",
            "diff_lines": 2,
            "delta": gain if letter == "k" else -0.001 if letter in "ds" else None,
            "reason": reason or {"s": "simpler: a tie"}.get(letter, "because"),
        }
        if letter == "k":
            best -= gain
        if letter in "cn":
            row |= {"val_bpb": None, "memory_gb": None}
        else:
            row["val_bpb"] = best if letter != "d" else best + 0.001
        if letter == "n":
            row |= {"commit": "", "arena_sha": "", "description": "no proposal", "diff_lines": 0}
        made.append(row)
    return made


def told(made: list[dict], **noise: float) -> dict:
    """metrics/iterate.json of `made`, its noise replaced."""
    found = made_session.metrics(made)
    found["noise"] |= noise
    return found


@pytest.mark.parametrize("steps", [15, 60, 180])
@pytest.mark.parametrize(
    ("warmup", "warmdown", "final"), [(0, 0.5, 0), (0.1, 0.3, 0.1), (0.5, 0.1, 0), (0.02, 1, 0), (0, 0.2, 0.5)]
)
def test_schedule_of_the_arena_never_jumps(steps: int, warmup: float, warmdown: float, final: float) -> None:
    scale = arena_schedule(steps, warmup, warmdown, final)
    assert findings.schedule_jump(history(steps, lr_scale=scale)) is None


@pytest.mark.parametrize("stop", [30, 100, 170])
def test_schedule_that_is_restarted_under_another_horizon_jumps(stop: int) -> None:
    """Half of the way down the schedule of 200 steps, the run goes on under that of 400."""
    old, new = arena_schedule(200, 0, 1, 0), arena_schedule(400, 0, 1, 0)
    scale = np.concatenate([old[:stop], new[stop:200]])
    found = findings.schedule_jump(history(200, lr_scale=scale))
    if stop == 30:
        assert found is None  # by 0.075: no more than a steep schedule's step
        return
    assert found is not None
    assert found.severity is Severity.WARNING
    assert f"to {new[stop]:.3g} at step {stop + 1}" in found.evidence
    assert "schedule()" in found.do


def test_schedule_that_falls_off_a_cliff_jumps_and_says_how_often() -> None:
    scale = np.repeat([1.0, 0.5, 0.05], 60)
    found = findings.schedule_jump(history(180, lr_scale=scale))
    assert found is not None
    assert found.evidence == "its multiplier goes from 1 to 0.5 at step 61, and 1 more"


def test_schedule_too_short_to_tell_is_silent() -> None:
    assert findings.schedule_jump(history(3, lr_scale=[1.0, 0.2, 1.0])) is None


def test_near_misses_are_silent_on_a_training_that_goes_well() -> None:
    assert findings.near_misses(history()) is None
    assert findings.near_misses(history(grad_norm=math.nan)) is None


def test_near_miss_of_the_loss_is_told_with_its_step() -> None:
    frame = history()
    frame.loc[120, "loss"] = 9.0
    found = findings.near_misses(frame)
    assert found is not None
    assert found.evidence.startswith("1 spike of the loss, up to 9 at step 121 after a median of 4.")


def test_near_miss_of_the_gradient_is_told_beside_the_loss() -> None:
    frame = history()
    frame.loc[[50, 60], "grad_norm"] = [40.0, 90.0]
    frame.loc[61, "loss"] = 20.0
    found = findings.near_misses(frame)
    assert found is not None
    loss, norm = found.evidence.split("; ")
    assert "20 at step 62" in loss
    assert norm.startswith("2 spikes of the gradient norm, up to 90 at step 61")


def test_near_miss_needs_a_history_before_it_and_more_than_a_small_loss() -> None:
    frame = history()
    frame.loc[9, "loss"] = 50.0  # nine before it
    assert findings.near_misses(frame) is None
    frame = history()
    frame.loc[10, "loss"] = 50.0
    assert findings.near_misses(frame) is not None
    assert findings.near_misses(history(loss=[0.1] * 150 + [0.9] * 50)) is None


def test_training_that_slows_down_is_told_and_a_checkpoint_is_not() -> None:
    found = findings.slowing(timing(10_000, 9_000, 6_000))
    assert found is not None
    assert found.severity is Severity.NOTE
    assert found.evidence.startswith("from 10,000 to 6,000 tokens/s")
    assert findings.slowing(timing(10_000, 9_000, 9_000)) is None
    dips = timing(10_000, 10_000, 10_000)
    dips.loc[40::3, "tokens_per_s"] = 2_000.0
    assert findings.slowing(dips) is None


def test_slowing_leaves_the_first_step_and_short_runs_alone() -> None:
    frame = timing(10_000, each=13)
    frame.loc[0, "tokens_per_s"] = 99_000.0
    assert findings.slowing(frame) is None
    assert findings.slowing(timing(10_000, 1_000, each=6)) is None


def test_gain_within_the_noise_is_told_with_both() -> None:
    made = shaped("dkdd", gain=0.004)
    found = findings.within_noise(session(made), told(made, sd=0.0021, threshold=0.0063))
    assert found is not None
    assert found.evidence == (
        "a gain of 0.0040 in all; 1 of 1 kept experiments gained no more, the least 0.0040; "
        "seeds alone move it by 0.0063 (sd 0.0021 over 5 seeds)"
    )
    assert "further seeds" in found.do


def test_one_small_gain_among_large_ones_is_told_and_the_whole_is_not() -> None:
    made = shaped("kk", gain=0.02)
    made[2]["delta"] = 0.003
    found = findings.within_noise(session(made), told(made))
    assert found is not None
    assert found.evidence.startswith("1 of 2 kept experiments gained no more, the least 0.0030;")


@pytest.mark.parametrize("statuses", ["kdk", "ddd", "sds", ""])
def test_gains_above_the_noise_and_sessions_that_claim_none_are_silent(statuses: str) -> None:
    made = shaped(statuses)
    assert findings.within_noise(session(made), told(made)) is None


def test_gain_that_the_test_split_does_not_show_is_told() -> None:
    made = made_session.rows()
    found = findings.lost_on_test(made_session.metrics(made, carries_over=False))
    assert found is not None
    assert "on validation" in found.evidence
    assert found.evidence.endswith("it is not told apart from none")
    worse = made_session.metrics(made, carries_over=False)
    worse["test"] |= {"gain": -0.02, "lower": -0.03, "upper": -0.01}
    found = findings.lost_on_test(worse)
    assert found is not None
    assert found.evidence.endswith("it is worse there")


def test_gain_that_carries_over_and_a_session_without_a_test_are_silent() -> None:
    assert findings.lost_on_test(made_session.metrics(made_session.rows())) is None
    assert findings.lost_on_test(made_session.metrics(shaped("ddd"))) is None


def test_proposer_that_repeats_itself_is_told() -> None:
    made = shaped("dddddd", same=True)
    found = findings.dead_proposer(session(made))
    assert found is not None
    assert found.evidence == "of the last 5 experiments 5 repeated an arena that had been tried and 0 proposed none"


def test_proposer_that_has_run_dry_is_told() -> None:
    found = findings.dead_proposer(session(shaped("kdkddnndnn")))
    assert found is not None
    assert found.evidence == "of the last 5 experiments 0 repeated an arena that had been tried and 4 proposed none"


def test_proposer_whose_candidates_all_crash_is_told_with_the_most_frequent_reason() -> None:
    made = shaped("kccccc", reason="crashed: out of memory")
    found = findings.dead_proposer(session(made))
    assert found is not None
    assert found.evidence == "all of the last 5 experiments crashed, most often with: crashed: out of memory"
    assert "program.md" in found.do


@pytest.mark.parametrize("statuses", ["dddddd", "ddddcccc", "cccc", "nnnn", "ddddddddnn"])
def test_proposer_with_new_ideas_and_a_short_session_are_silent(statuses: str) -> None:
    assert findings.dead_proposer(session(shaped(statuses))) is None


def test_gate_that_keeps_everything_is_told() -> None:
    found = findings.one_sided_gate(session(shaped("kkkck")))
    assert found is not None
    assert (found.severity, found.evidence) == (Severity.WARNING, "all 4 experiments that it judged were kept")


def test_gate_that_keeps_nothing_is_a_note_with_the_best_of_them() -> None:
    made = shaped("ddddddcdd")
    made[3]["delta"] = 0.0012
    found = findings.one_sided_gate(session(made))
    assert found is not None
    assert found.severity is Severity.NOTE
    assert found.evidence.startswith("none of 8 experiments that it judged was kept; the best came +0.0012")


@pytest.mark.parametrize("statuses", ["kkk", "ddddddd", "kddddddddd", "kkkkd", "cccccccccc", ""])
def test_gate_that_does_both_and_a_short_session_are_silent(statuses: str) -> None:
    assert findings.one_sided_gate(session(shaped(statuses))) is None


def test_made_up_results_of_the_other_tests_have_no_findings_and_a_bad_one_has_all() -> None:
    made = made_session.rows()
    assert findings.in_training(history(1200), timing(10_000)) == []
    assert findings.in_research(session(made), told(made)) == []
    bad = history(lr_scale=np.repeat([1.0, 0.2], 100))
    bad.loc[150, "loss"] = 30.0
    assert [each.what for each in findings.in_training(bad, timing(9, 9, 1))] == [
        "the learning rate jumps",
        "training came near to failing",
        "training slowed down",
    ]
    assert len(findings.in_training(bad, None)) == 2
    made = shaped("kkkkk", gain=0.001, same=True)
    metrics = made_session.metrics(made, carries_over=False)
    found = findings.in_research(session(made), metrics)
    assert len(found) == 4
    assert all(isinstance(each, Found) and each.evidence and each.do[0].islower() for each in found)
