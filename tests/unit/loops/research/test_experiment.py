"""What is trained and judged where, and what the table says when that gave no score: the same whenever done again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ratchet.data.packing import PackedSplit, Pieces
from ratchet.loops.research.experiment import reason_of, refusal_of, subset
from ratchet.loops.research.session import devices
from ratchet.sandbox.job import End, Ended
from ratchet.train.device import resolve_device
from ratchet.train.refusal import Reason, Refused


@pytest.mark.parametrize(
    ("ended", "reason"),
    [
        (Ended(End.TIMED_OUT, 137, 61.2, ("step 3",), "no end within 61.2 s"),
         "timed out: no end within the session's limit"),
        (Ended(End.OUT_OF_MEMORY, 137, 3.0, (), "over 2,048 MiB"), "out of memory: over 2,048 MiB"),
        (Ended(End.CRASHED, 1, 3.0, ("RuntimeError: boom",), "exit code 1"), "RuntimeError: boom"),
        (Ended(End.CRASHED, 139, 3.0, ("deep",), "signal SIGSEGV"), "signal SIGSEGV: deep"),
        (Ended(End.CRASHED, 1, 3.0), "exit code 1"),
    ],
)  # fmt: skip
def test_reason_of_a_training_names_a_limit_without_what_was_measured(ended: Ended, reason: str) -> None:
    assert reason_of(ended) == reason


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (Refused(Reason.TIMED_OUT, "no end within 1799.97 s before all was answered", "be faster"),
         "refused, timed out: no end within iterate.limits.judge_seconds"),
        (Refused(Reason.LOOK_AHEAD, "another future moves an answer by 0.1 nats (row 4, target 2)", "mend it"),
         "refused, look-ahead: another future moves an answer"),
        (Refused(Reason.WRONG_SHAPE, "[4,\t3]", "mend it"), "refused, wrong shape: [4, 3]"),
    ],
)  # fmt: skip
def test_reason_of_a_judging_is_its_refusal_without_what_was_measured_or_drawn(refused: Refused, reason: str) -> None:
    assert refusal_of(refused) == reason


def test_subset_of_a_split_is_the_same_rows_with_the_pieces_that_lie_in_them() -> None:
    rows = np.arange(40).reshape(10, 4)
    pieces = Pieces(np.arange(10) // 2, np.arange(10), np.zeros(10, np.int64), np.full(10, 3))
    split = PackedSplit(Path("val"), {"rows": 10, "sequence_len": 3}, rows, pieces)
    some, again = subset(split, 4), subset(split, 4)
    chosen = [int(row[0]) // 4 for row in some.rows]
    assert len(set(chosen)) == 4
    assert chosen == sorted(chosen) == [int(row[0]) // 4 for row in again.rows]
    assert some.pieces is not None
    assert some.pieces.row.tolist() == [0, 1, 2, 3]
    assert some.pieces.document.tolist() == [row // 2 for row in chosen]
    assert subset(split, 10) is split


def test_devices_of_parallel_experiments_share_the_cores() -> None:
    whole = resolve_device("cpu", 1)
    assert [device.threads for device in devices(replace(whole, threads=7), 3)] == [2, 2, 2]
    assert [device.threads for device in devices(whole, 2)] == [1, 1]
