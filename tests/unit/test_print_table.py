"""A table of the command line: one line a row in a pipe, folded on a terminal."""

from __future__ import annotations

import pytest

from ratchet.commands.project import print_table

LONG = "x" * 300
ROWS = [("train", 7, LONG), ("évaluer 評価", 12, "two\nlines and\ttabs"), ("plot", 3, "")]


def test_table_in_a_pipe_is_one_line_a_row_and_nothing_is_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    print_table(("stage", "rows", "what [bold]"), ROWS)
    assert capsys.readouterr().out.splitlines() == [
        "stage         rows  what [bold]",
        f"train         7     {LONG}",
        "évaluer 評価  12    two lines and tabs",
        "plot          3",
    ]


def test_table_on_a_terminal_is_folded_into_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    print_table(("stage", "rows", "what"), ROWS[:1])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 5
    assert sum(line.count("x") for line in lines) == len(LONG)
