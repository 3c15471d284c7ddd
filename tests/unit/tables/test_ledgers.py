"""Ledgers as people keep them: each kind of mess comes out right, and what had to be assumed is said."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from ratchet.core.errors import InputError
from ratchet.tables import ledgers
from ratchet.tables.ledgers import Ledger

HEAD = "commit\tval_bpb\tmemory_gb\tstatus\tdescription\n"
PUBLISHED = HEAD + (
    "a1b2c3d\t0.997900\t44.0\tkeep\tbaseline\n"
    "b2c3d4e\t0.993200\t44.2\tkeep\tincrease LR to 0.04\n"
    "c3d4e5f\t1.005000\t44.0\tdiscard\tswitch to GeLU activation\n"
    "d4e5f6a\t0.000000\t0.0\tcrash\tdouble model width (OOM)\n"
)


def ledger(tmp_path: Path, text: str | bytes, *, lenient: bool = False) -> Ledger:
    path = tmp_path / "results.tsv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return ledgers.read(path, lenient=lenient)


def refused(tmp_path: Path, text: str) -> str:
    with pytest.raises(InputError) as caught:
        ledger(tmp_path, text)
    return str(caught.value)


def scores(found: Ledger) -> list[float | None]:
    return [None if math.isnan(score) else score for score in found.table["val_bpb"]]


def statuses(found: Ledger) -> str:
    return " ".join(found.table["status"])


def test_ledger_published_comes_out_whole(tmp_path: Path) -> None:
    found = ledger(tmp_path, PUBLISHED)
    assert scores(found) == [0.9979, 0.9932, 1.005, None]
    assert statuses(found) == "keep keep discard crash"
    assert found.table["line"].tolist() == [2, 3, 4, 5]
    assert found.table["memory_gb"].tolist()[:2] == [44.0, 44.2]
    assert found.left_out == ()
    assert "line 5: a val_bpb of 0 is no score: read as a crash" in found.assumed


def test_ledger_upper_case_status_and_statuses_of_others_are_mapped_and_said(tmp_path: Path) -> None:
    said = (
        "BASELINE",
        "Keep",
        "best",
        "adopted-win",
        "tentative",
        "repair",
        "DISCARD",
        "Crash",
        "failed",
        "**kept** ✅",
    )
    text = HEAD + "".join(f"c{at}\t0.9{9 - at}\t44\t{status}\tx\n" for at, status in enumerate(said))
    found = ledger(tmp_path, text)
    assert statuses(found) == "keep keep keep keep discard discard discard crash discard keep"
    assert "status 'adopted-win' read as keep (1 row)" in found.assumed
    assert "status 'tentative' read as discard (1 row)" in found.assumed
    assert found.table["baseline"].tolist() == [True, *[False] * 9]
    assert found.table["val_bpb"].isna().tolist()[7], "a crash has no score"


@pytest.mark.parametrize(
    ("said", "read", "baseline"),
    [
        ("baseline", "keep", True),
        ("best", "keep", False),
        ("tentative", "discard", False),
        ("repair", "discard", False),
        ("KEEP", "keep", False),
        ("adopted-win", "keep", False),
    ],
)
def test_ledger_status_of_others_is_mapped_and_the_mapping_is_printed(
    tmp_path: Path, said: str, read: str, baseline: bool
) -> None:
    found = ledger(tmp_path, HEAD + f"a\t0.99\t44\tkeep\tx\nb\t0.98\t44\t{said}\ty\n")
    assert statuses(found) == f"keep {read}"
    assert bool(found.table["baseline"].iloc[1]) is baseline
    assert said == "KEEP" or f"status {said!r} read as {read} (1 row)" in found.assumed


def test_ledger_unknown_status_strict_names_line_lenient_reads_it_as_discard(tmp_path: Path) -> None:
    text = HEAD + "a\t0.99\t44\tkeep\tx\nb\t0.98\t44\tkeeep\ty\nc\t0.98\t44\tqwerty\ty\n"
    said = refused(tmp_path, text)
    assert "line 3: unknown status 'keeep'; did you mean keep?" in said
    assert "line 4: unknown status 'qwerty'" in said
    assert "--lenient" in said
    found = ledger(tmp_path, text, lenient=True)
    assert statuses(found) == "keep discard discard"
    assert "status 'qwerty' read as discard (1 row)" in found.assumed


def test_ledger_extra_columns_and_other_order_are_kept(tmp_path: Path) -> None:
    text = "exp\tstatus\tval_bpb\tsteps\tcommit\tdescription\tmemory_gb\tnote\n1\tkeep\t0.99\t953\tabc\tbase\t44\thi\n"
    found = ledger(tmp_path, text)
    assert list(found.table.columns) == [
        *("line", "commit", "val_bpb", "memory_gb", "status", "description", "baseline"),
        *("exp", "steps", "note"),
    ]
    row = found.table.iloc[0]
    assert (row["commit"], row["val_bpb"], row["steps"], row["note"]) == ("abc", 0.99, "953", "hi")


def test_ledger_other_names_are_found_and_said(tmp_path: Path) -> None:
    found = ledger(tmp_path, "Hash\tBPB\tpeak_vram_mb\tDecision\tidea\nabc\t0.99\t45,056.0\tkeep\tbase\n")
    assert found.table.iloc[0]["memory_gb"] == 44.0
    assert "column 'BPB' read as val_bpb" in found.assumed
    assert "column 'peak_vram_mb' read as memory_gb" in found.assumed


def test_ledger_without_commit_and_description_leaves_them_empty_and_says_so(tmp_path: Path) -> None:
    found = ledger(tmp_path, "val_bpb\tstatus\n0.99\tkeep\n")
    assert found.table.iloc[0]["commit"] == ""
    assert "no column for commit, memory_gb, description: left empty" in found.assumed


def test_ledger_without_score_column_names_those_there_and_the_nearest(tmp_path: Path) -> None:
    said = refused(tmp_path, "commit\tval_bqb\tstatus\nabc\t1\tkeep\n")
    assert "no column is called val_bpb" in said
    assert "the columns are commit, val_bqb, status; did you mean val_bqb" in said


def test_ledger_zero_under_any_status_is_no_score(tmp_path: Path) -> None:
    text = HEAD + "a\t0.99\t44\tkeep\tx\nb\t0.000000\t0\tdiscard\taborted\nc\t0.0\t0\tkeep\todd\nd\t-\t\tdiscard\tn\n"
    found = ledger(tmp_path, text)
    assert scores(found) == [0.99, None, None, None]
    assert statuses(found) == "keep crash crash crash"
    assert "lines 3, 4: a val_bpb of 0 is no score: read as a crash" in found.assumed
    assert "line 5: no val_bpb: read as a crash" in found.assumed


def test_ledger_same_commit_in_many_rows_keeps_each(tmp_path: Path) -> None:
    found = ledger(tmp_path, HEAD + "a\t0.99\t44\tkeep\tx\n" + "b\t0.98\t44\tdiscard\ty\n" * 3)
    assert len(found.table) == 4
    assert any("the same commit in several rows" in said and "b (3 rows)" in said for said in found.assumed)


MESS = (
    HEAD
    + "a\t0.99\t44\tkeep\tbase\n"  # 2
    + "b\t0.98\t44\n"  # 3: ragged, no status
    + "---------------------\n"  # 4
    + "The next night begins here.\n"  # 5
    + "# a comment\n"  # 6
    + "c,0.97,44,keep,with, commas\n"  # 7
    + "d\t0.96\t44\tdiscard\twith\ttabs\n"  # 8
    + "e\t0.000000\t0\tcrash\n"  # 9: no description
    + "\n"
    + HEAD  # 11
    + "f\t0.95\t44\tkeep\tsecond night\n"  # 12
    + "lr\twd\tval_bpb\tsteps\tstatus\tcost\n"  # 13: another table
    + "0.1\t0.2\t0.5\t10\tkeep\t1\n"  # 14
    + "x\t0.10\t44\tkeep\tas wide as ours\n"  # 15
)


@pytest.mark.parametrize(
    ("line", "rows"),
    [
        ("b\t0.98", 2),
        ("b\t0.98\t44\tkeep\twith\ttabs", 3),
        ("=====================", 2),
        ("|---|---|---|", 2),
        ("and so to bed", 2),
        ("b,0.98,44,keep,by commas", 3),
        ("lr\tval_bpb\tstatus\n0.1\t0.5\tkeep", 2),
    ],
    ids=["ragged", "too wide", "separator", "separator of Markdown", "prose", "commas", "another table"],
)
def test_ledger_line_that_is_no_row_is_named_and_lenient_reads_the_others(tmp_path: Path, line: str, rows: int) -> None:
    text = HEAD + f"a\t0.99\t44\tkeep\tbase\n{line}\n" + ("" if "lr" in line else "z\t0.97\t44\tkeep\tlast\n")
    assert "line 3:" in refused(tmp_path, text)
    found = ledger(tmp_path, text, lenient=True)
    assert len(found.table) == (1 if "lr" in line else rows)
    told = found.left_out if len(found.table) < 3 else found.assumed
    assert any(said.startswith("line 3:") for said in told)


def test_ledger_mess_strict_names_every_line(tmp_path: Path) -> None:
    said = refused(tmp_path, MESS)
    for line in (3, 4, 5, 6, 7, 8, 9, 11, 13, 14, 15):
        assert f"line {line}:" in said, line
    assert "line 10:" not in said


def test_ledger_mess_lenient_reads_what_is_readable_and_lists_the_rest(tmp_path: Path) -> None:
    found = ledger(tmp_path, MESS, lenient=True)
    assert found.table["commit"].tolist() == ["a", "c", "d", "e", "f"]
    assert found.table["description"].tolist() == ["base", "with, commas", "with tabs", "", "second night"]
    assert [said.partition(":")[0] for said in found.left_out] == [
        *("line 3", "line 4", "line 5", "line 6", "line 11", "line 13", "line 14", "line 15")
    ]
    assert "line 3: 3 cells where the header has 5" in found.left_out[0]
    assert "belongs to the table that begins in line 13" in found.left_out[-1]
    assert any(said.startswith("line 7: separated by commas") for said in found.assumed)
    assert any(said.startswith("line 8: 6 cells") for said in found.assumed)


def test_ledger_unreadable_score_strict_names_it_lenient_leaves_it_out(tmp_path: Path) -> None:
    text = PUBLISHED + "e\tabout one\t44\tkeep\tx\nf\t-0.3\t44\tkeep\ty\n"
    said = refused(tmp_path, text)
    assert "line 6: val_bpb is 'about one', which is no number" in said
    assert "line 7: val_bpb is -0.3, below 0" in said
    assert len(ledger(tmp_path, text, lenient=True).left_out) == 2


@pytest.mark.parametrize(
    ("encode", "said"),
    [
        (lambda text: b"\xef\xbb\xbf" + text.encode(), None),
        (lambda text: text.replace("\n", "\r\n").encode(), None),
        (lambda text: text.replace("\n", "\r").encode(), None),
        (lambda text: text.rstrip("\n").encode(), None),
        (lambda text: text.encode("utf-16"), "UTF-16"),
    ],
    ids=["byte-order mark", "CRLF", "CR", "no last newline", "UTF-16"],
)
def test_ledger_encodings_give_the_same_rows(tmp_path: Path, encode, said: str | None) -> None:
    found = ledger(tmp_path, encode(PUBLISHED))
    assert found.table.equals(ledger(tmp_path, PUBLISHED).table)
    assert said is None or any(said in each for each in found.assumed)


def test_ledger_quotes_tabs_and_line_ends_in_descriptions_come_out_right(tmp_path: Path) -> None:
    text = HEAD + (
        'a\t0.99\t44\tkeep\t"quoted, whole"\n'
        'b\t0.98\t44\tkeep\t"a\ttab and ""quotes"""\n'
        'c\t0.97\t44\tkeep\t"two\nlines"\n'
        'd\t0.96\t44\tkeep\t"quick" fix, 3" wide\n'
        'e\t0.95\t44\tdiscard\t5" too wide\n'
        "f\t0.94\t44\tkeep\tlast\n"
    )
    found = ledger(tmp_path, text)
    assert found.table["description"].tolist() == [
        "quoted, whole",
        'a tab and "quotes"',
        "two lines",
        '\'quick" fix, 3" wide',
        '5" too wide',
        "last",
    ]
    assert found.table["line"].tolist() == [2, 3, 4, 6, 7, 8]


def test_ledger_thousands_decimal_commas_units_and_signs_are_numbers(tmp_path: Path) -> None:
    text = HEAD.replace("memory_gb", "memory_mb") + (
        "a\t0,9979\t45,056\tkeep\tx\nb\t~0.98*\t45056 MB\tkeep\ty\nc\t`1.000`\t1,024.0\tdiscard\tz\n"
    )
    found = ledger(tmp_path, text)
    assert scores(found) == [0.9979, 0.98, 1.0]
    assert found.table["memory_gb"].tolist() == [44.0, 44.0, 1.0]
    assert any("a comma in a number" in said for said in found.assumed)


@pytest.mark.parametrize(
    "text",
    [
        PUBLISHED.replace("\t", ","),
        PUBLISHED.replace("\t", ";"),
        "# Results\n" * 0
        + "| commit | val_bpb | memory_gb | status | description |\n|---|---:|---|---|---|\n"
        + "".join("| " + line.replace("\t", " | ") + " |\n" for line in PUBLISHED.splitlines()[1:]),
    ],
    ids=["commas", "semicolons", "a Markdown table"],
)
def test_ledger_other_delimiters_give_the_same_rows(tmp_path: Path, text: str) -> None:
    found = ledger(tmp_path, text).table.drop(columns="line")
    assert found.equals(ledger(tmp_path, PUBLISHED).table.drop(columns="line"))


def test_ledger_without_header_in_the_published_order_is_read_and_said(tmp_path: Path) -> None:
    found = ledger(tmp_path, PUBLISHED.removeprefix(HEAD))
    assert statuses(found) == "keep keep discard crash"
    assert any("no header" in said for said in found.assumed)


def test_ledger_prose_above_the_header_is_named(tmp_path: Path) -> None:
    text = "My results\n\n" + PUBLISHED
    found = ledger(tmp_path, text, lenient=True)
    assert len(found.table) == 4
    assert found.left_out[0].startswith("line 1: ")
    assert "line 1:" in refused(tmp_path, text)


def test_ledger_first_row_a_crash_and_no_kept_row_are_read(tmp_path: Path) -> None:
    found = ledger(tmp_path, HEAD + "a\t0.000000\t0\tcrash\tx\nb\t0.99\t44\tdiscard\ty\n")
    assert statuses(found) == "crash discard"


@pytest.mark.parametrize(
    ("text", "said"), [(HEAD, "holds only a header"), ("", "is empty"), ("\ufeff\r\n", "is empty")]
)
def test_ledger_without_a_row_says_that_the_session_ended_before_its_first(
    tmp_path: Path, text: str, said: str
) -> None:
    assert f"{said}: the session ended before its first experiment" in refused(tmp_path, text)


def test_ledger_missing_file_and_bytes_that_are_no_text_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        ledgers.read(tmp_path / "none.tsv")
    with pytest.raises(InputError, match="not UTF-8 at byte 8"):
        ledger(tmp_path, b"val_bpb\t\xff\xff\xff")


def test_ledger_control_characters_never_reach_a_terminal(tmp_path: Path) -> None:
    found = ledger(tmp_path, HEAD + "a\x1b[2J\t0.99\t44\tkeep\tred \x1b[31m\u202eevil\u0007\n")
    assert found.table.iloc[0]["description"] == "red [31mevil"
    assert "\x1b" not in found.table.iloc[0]["commit"]


def operations_of_reading(path: Path, rows: int) -> int:
    """How many bytecode operations the readers' own code takes for a ledger of so many rows."""
    lines = [f"{at:07x}\t{1 - at / 1e6:.6f}\t44.0\t{'discard' if at % 9 else 'keep'}\ttry {at}" for at in range(rows)]
    path.write_text(HEAD + "\n".join(lines) + "\n")
    here, operations = str(Path(ledgers.__file__).parent), 0

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal operations
        if not frame.f_code.co_filename.startswith(here):
            return None
        frame.f_trace_opcodes = True
        operations += event == "opcode"
        return count

    sys.settrace(count)
    try:
        table = ledgers.read(path).table
    finally:
        sys.settrace(None)
    assert len(table) == rows
    return operations


def test_ledger_of_twice_the_rows_takes_twice_the_operations(tmp_path: Path) -> None:
    """Seconds are measured by bench/ledgers.py; this holds on any machine."""
    few, some, many = (operations_of_reading(tmp_path / "results.tsv", rows) for rows in (200, 400, 800))
    assert many - some == pytest.approx(2 * (some - few), rel=0.02)
