"""The course of a ledger: running best, segments, top hits, cost."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import made_session
from ratchet.tables import improvement, ledgers
from ratchet.tables.improvement import Course, Kind

HEAD = "commit\tval_bpb\tmemory_gb\tstatus\tdescription\tcost_usd\n"


def course(tmp_path: Path, *rows: str) -> Course:
    path = tmp_path / "results.tsv"
    path.write_text(HEAD + "".join(f"{row}\n" for row in rows), encoding="utf-8")
    return improvement.course(ledgers.read(path))


def row(commit: str, score: float, status: str, cost: str = "") -> str:
    return f"{commit}\t{score:.6f}\t44\t{status}\ttry {commit}\t{cost}"


def test_course_running_best_is_of_kept_rows_alone(tmp_path: Path) -> None:
    told = course(
        tmp_path, row("a", 1.0, "keep"), row("b", 0.5, "discard"), row("c", 0.9, "keep"), row("d", 0, "crash")
    )
    assert told.table["best"].tolist() == [1.0, 1.0, 0.9, 0.9]
    assert told.table["kind"].tolist() == ["baseline", "discard", "progress", "crash"]
    assert (told.best, told.experiments, told.count(Kind.CRASH)) == (0.9, 3, 1)


def test_course_keep_worse_than_the_best_begins_a_segment_and_is_no_progress(tmp_path: Path) -> None:
    told = course(tmp_path, row("a", 1.0, "keep"), row("b", 0.9, "keep"), row("c", 1.4, "keep"), row("d", 1.3, "keep"))
    assert told.table["segment"].tolist() == [0, 0, 1, 1]
    assert told.table["kind"].tolist() == ["baseline", "progress", "baseline", "progress"]
    assert told.table["best"].tolist() == [1.0, 0.9, 1.4, 1.3]
    assert [(s.baseline, s.best, s.best_commit) for s in told.segments] == [(1.0, 0.9, "b"), (1.4, 1.3, "d")]
    assert "line 4: kept though worse than the best (1.4 after 0.9): a new baseline begins" in told.notes
    assert [hit.commit for hit in told.hits()] == ["b", "d"], "no hit of the step from 0.9 to 1.4"


def test_course_row_called_baseline_begins_a_segment_even_when_better(tmp_path: Path) -> None:
    told = course(tmp_path, row("a", 1.0, "baseline"), row("b", 0.9, "keep"), row("c", 0.7, "BASELINE"))
    assert told.count(Kind.PROGRESS) == 1
    assert len(told.segments) == 2


def test_course_tie_is_kept_and_no_progress(tmp_path: Path) -> None:
    told = course(tmp_path, row("a", 1.0, "keep"), row("b", 1.0, "keep"))
    assert told.table["kind"].tolist() == ["baseline", "simpler"]
    assert told.hits() == []


def test_course_crash_first_counts_progress_from_the_first_kept(tmp_path: Path) -> None:
    told = course(tmp_path, row("a", 0, "crash"), row("b", 0.8, "discard"), row("c", 1.0, "keep"))
    assert math.isnan(told.table["best"][1])
    assert told.segments[0].first == 0
    assert any("first row is no kept one" in note for note in told.notes)


def test_course_nothing_kept_has_no_best_and_says_so(tmp_path: Path) -> None:
    told = course(tmp_path, row("a", 0, "crash"), row("b", 0.8, "discard"))
    assert told.best is None
    assert told.segments == ()
    assert told.hits() == []
    assert told.summary()["best"] is None
    assert "no row was kept" in told.notes[0]


def test_course_hits_are_sorted_by_gain_with_their_share(tmp_path: Path) -> None:
    scores = (1.0, 0.99, 0.90, 0.89, 0.80)
    told = course(tmp_path, *(row(f"c{at}", score, "keep") for at, score in enumerate(scores)))
    hits = told.hits(2)
    assert [hit.commit for hit in hits] == ["c2", "c4"]
    assert [round(hit.gain, 6) for hit in hits] == [0.09, 0.09]
    assert hits[0].share == pytest.approx(0.45)


def test_course_cost_accumulates_whatever_the_cells_look_like(tmp_path: Path) -> None:
    told = course(
        tmp_path, row("a", 1, "keep", "$0.50"), row("b", 2, "discard", "n/a"), row("c", 2, "discard", "1,000.25")
    )
    assert told.cost is not None
    assert told.cost.tolist() == [0.5, 0.5, 1000.75]


def test_course_without_a_cost_column_has_no_cost(tmp_path: Path) -> None:
    (tmp_path / "r.tsv").write_text("val_bpb\tstatus\n1.0\tkeep\n")
    assert improvement.course(ledgers.read(tmp_path / "r.tsv")).cost is None


def test_course_of_our_own_keeps_simpler_ones_in_the_segment(tmp_path: Path) -> None:
    made = made_session.rows(14)
    made_session.make_session(tmp_path, made=made)
    told = improvement.course(ledgers.read(tmp_path / "data/iterate/results.tsv"))
    assert len(told.segments) == 1
    assert told.table["kind"][11] == "simpler"
    assert told.count(Kind.PROGRESS) == sum(each["status"] == "keep" for each in made) - 2
    assert told.cost is not None
    assert told.cost[-1] == pytest.approx(14 * 0.0125)
