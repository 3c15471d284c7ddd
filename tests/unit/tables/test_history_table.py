"""history.tsv and timing/steps.tsv: what is refused, and in which words."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ratchet.core.errors import InputError
from ratchet.tables import history, timing
from ratchet.tables.conform import MAX_GROUPS, TableError

HEADER = "step\ttokens\tepoch\tloss\tlr_scale\tgrad_norm\n"
GOOD = "1\t10\t0.1\t3.25\t0.5\t\n2\t20\t0.2\t3.125\t1.0\t1.5\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "history.tsv"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        history.read(path)
    return str(caught.value)


def test_history_good_file_has_exact_values_and_types(tmp_path: Path) -> None:
    loss = 0.1 + 0.2
    table = history.read(written(tmp_path, HEADER + f"1\t10\t0.1\t{loss!r}\t0.5\t\n"))
    assert table["loss"].iloc[0] == loss
    assert table["step"].dtype == np.int64
    assert table["grad_norm"].isna().all()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("3\t30\t0.3\tinf\t1.0\t1.5", "column loss, line 4: inf (must be a finite number, at least 0)"),
        ("3\t30\t0.3\tnan\t1.0\t1.5", "column loss, line 4: 'nan' (must hold a value)"),
        ("3\t30\t0.3\t\t1.0\t1.5", "column loss, line 4: empty (must hold a value)"),
        ("3\t30\t0.3\tlow\t1.0\t1.5", "column loss, line 4: 'low' (must be a number)"),
        ("3\t30\t0.3\t-1\t1.0\t1.5", "column loss, line 4: -1.0 (must be a finite number, at least 0)"),
        ("3.5\t30\t0.3\t3\t1.0\t1.5", "column step, line 4: 3.5 (must be a whole number, at least 1)"),
        ("2\t30\t0.3\t3\t1.0\t1.5", "column step, line 4: 2 (must be greater than in the row above)"),
        ("3\t30\t0.1\t3\t1.0\t1.5", "column epoch, line 4: 0.1 (must be not less than in the row above)"),
        ("3\t30\t0.3\t3\t1.5\t1.5", "column lr_scale, line 4: 1.5 (must be a finite number from 0 to 1)"),
        ("3\t30\t0.3\t3\t1.0\t-2", "column grad_norm, line 4: -2.0 (must be a finite number, at least 0)"),
    ],
)
def test_history_one_bad_cell_names_column_line_value_rule(tmp_path: Path, line: str, said: str) -> None:
    path = written(tmp_path, HEADER + GOOD + line + "\n")
    assert refusal(path) == f"{path}: {said}; run `dvc repro --force train` to write it anew"


@pytest.mark.parametrize("text", ["", "\n", HEADER])
def test_history_without_rows_says_the_run_died_and_where_its_log_is(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, text)
    assert "the run died before its first step; read its log: runs/train/<fingerprint>/train.log" in refusal(path)


def test_history_without_rows_names_the_newest_log(tmp_path: Path) -> None:
    for age, name in ((100, "old"), (0, "new"), (50, "middle")):
        log = tmp_path / "runs/train" / name / "train.log"
        log.parent.mkdir(parents=True)
        log.write_text("")
        os.utime(log, (time.time() - age, time.time() - age))
    with pytest.raises(InputError, match=r"runs/train/new/train.log"):
        history.read(written(tmp_path, HEADER), runs=tmp_path / "runs")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEADER + GOOD + "3\t30\n", "line 4: 2 cells where the header has 6 (1 in all)"),
        (HEADER + GOOD + "3\t30\t0.3\t3.0\t1.0", r"line 4: '3\t30\t0.3\t3.0\t1.0' is torn, its end is missing"),
        (HEADER + "\n" + GOOD, "line 2: 1 cells where the header has 6 (1 in all)"),
        ("step\tloss\n1\t3\n", "column tokens, epoch, lr_scale, grad_norm is missing (present: step, loss)"),
        ("<html>\n<body>\n", "column step, tokens, epoch, loss, lr_scale, grad_norm is missing (present: <html>)"),
    ],
)
def test_history_garbled_file_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    message = refusal(written(tmp_path, text))
    assert said in message
    assert len(message.splitlines()) == 1


def test_history_not_utf8_names_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "history.tsv"
    path.write_bytes(HEADER.encode() + b"\xff")
    assert f"not UTF-8 at byte {len(HEADER)}" in refusal(path)


def test_history_missing_file_says_what_to_run(tmp_path: Path) -> None:
    assert "no such file; run `dvc repro --force train`" in refusal(tmp_path / "history.tsv")


def test_history_many_faults_fit_one_screen_grouped_by_column_and_rule(tmp_path: Path) -> None:
    rows = "".join(f"{n}\t{n * 10}\t0.1\t{-n}\t{n}\tinf\n" for n in range(2, 5000))
    message = refusal(written(tmp_path, HEADER + rows))
    lines = message.splitlines()
    assert len(lines) == 3
    assert "lines 2, 3, 4, 5, 6 (4998 in all): -2, -3, -4, … (must be a finite number, at least 0)" in lines[0]
    assert "(and 2 more, below)" in lines[0]
    assert lines[1].startswith("  column lr_scale, lines 2, 3, 4, 5, 6 (4998 in all): 2, 3, 4, …")
    assert all(len(line) < 240 + len(str(tmp_path)) for line in lines)


def test_table_error_more_faults_than_a_screen_counts_the_rest() -> None:
    error = TableError("t.tsv", [f"fault {n}" for n in range(40)], "mend it")
    lines = str(error).splitlines()
    assert len(lines) == MAX_GROUPS + 1
    assert lines[-1] == "  … and 28 more"
    assert error.exit_code == 2


def test_history_hundred_thousand_rows_validate_in_under_a_second(tmp_path: Path) -> None:
    step = np.arange(1, 100_001)
    frame = pd.DataFrame(
        {"step": step, "tokens": step * 4096, "epoch": step / 1e3, "loss": 3.0, "lr_scale": 1.0, "grad_norm": 1.0}
    )
    path = tmp_path / "history.tsv"
    frame.to_csv(path, sep="\t", index=False)
    history.read(path)  # the first call pays for imports
    started = time.process_time()
    assert len(history.read(path)) == 100_000
    assert time.process_time() - started < 1.0


def test_steps_timing_seconds_that_fall_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "steps.tsv"
    path.write_text("step\tseconds\ttokens_per_s\tmemory_mb\n1\t2.0\t10\t5\n2\t1.0\t10\t\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"column seconds, line 3: 1.0 .must be not less than in the row above"):
        timing.read_steps(path)
