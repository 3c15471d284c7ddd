"""The ledger: order, replacement, torn and corrupt lines, what JSON refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.core import atomic
from ratchet.core.errors import InputError
from ratchet.core.ledger import Ledger

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
ROWS = st.lists(st.dictionaries(st.text(), VALUES, max_size=3), max_size=5)


def filled(path: Path, count: int) -> Ledger:
    ledger = Ledger(path)
    for seq in range(count):
        ledger.put(seq, {"loss": seq / 2})
    return ledger


def test_put_then_a_new_reader_sees_the_same_rows_with_their_seq(tmp_path: Path) -> None:
    ledger = filled(tmp_path / "deep" / "ledger.jsonl", 3)
    assert ledger.rows() == Ledger(ledger.path).rows() == [{"seq": s, "loss": s / 2} for s in range(3)]


def test_put_same_seq_replaces_it_and_everything_after(tmp_path: Path) -> None:
    ledger = filled(tmp_path / "ledger.jsonl", 5)
    ledger.put(2, {"loss": "new"})
    assert [row["loss"] for row in ledger.rows()] == [0.0, 0.5, "new"]
    assert Ledger(ledger.path).rows() == ledger.rows()


def test_put_row_with_a_seq_of_its_own_gets_the_real_one(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.put(0, {"loss": 1, "seq": 99})
    assert Ledger(ledger.path).rows() == [{"seq": 0, "loss": 1}]


def test_put_beyond_the_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="row 4 does not follow the 3 there are"):
        filled(tmp_path / "ledger.jsonl", 3).put(4, {})


@pytest.mark.parametrize("number", [float("nan"), float("inf"), {"deep": [float("-inf")]}, object()])
def test_put_what_is_no_json_is_refused_and_nothing_is_written(tmp_path: Path, number: object) -> None:
    ledger = filled(tmp_path / "ledger.jsonl", 1)
    before = ledger.path.read_bytes()
    with pytest.raises(InputError, match="cannot be kept as JSON"):
        ledger.put(1, {"loss": number})
    assert ledger.path.read_bytes() == before


def test_mutant_nan_accepted_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic, "json_line", lambda value, where: json.dumps(value) + "\n")
    with pytest.raises(pytest.fail.Exception):
        test_put_what_is_no_json_is_refused_and_nothing_is_written(tmp_path, float("nan"))


@pytest.mark.parametrize("lost", range(1, 18))
def test_rows_torn_last_line_is_dropped_and_overwritten_by_the_next_put(tmp_path: Path, lost: int) -> None:
    path = filled(tmp_path / "ledger.jsonl", 3).path
    whole = path.read_bytes()
    path.write_bytes(whole[:-lost])
    torn = Ledger(path)
    assert len(torn.rows()) == 2
    torn.put(2, {"loss": 1.0})
    assert path.read_bytes() == whole


def test_rows_last_line_of_zeros_after_a_power_cut_is_dropped(tmp_path: Path) -> None:
    path = filled(tmp_path / "ledger.jsonl", 2).path
    path.write_bytes(path.read_bytes() + bytes(20) + b"\n")
    assert len(Ledger(path).rows()) == 2


@pytest.mark.parametrize("damage", [b"{", b'{"seq":7}', b"[]", b"\xff\xfe", b""])
def test_rows_corrupt_middle_line_is_refused_with_its_number(tmp_path: Path, damage: bytes) -> None:
    path = filled(tmp_path / "ledger.jsonl", 4).path
    lines = path.read_bytes().split(b"\n")
    lines[1] = damage
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(InputError, match=r"ledger\.jsonl:2: is not row 1"):
        Ledger(path).rows()


def test_rows_missing_file_is_an_empty_ledger(tmp_path: Path) -> None:
    assert Ledger(tmp_path / "none").rows() == []


def test_rows_reader_never_changes_a_torn_file_that_a_writer_may_hold(tmp_path: Path) -> None:
    path = filled(tmp_path / "ledger.jsonl", 2).path
    path.write_bytes(path.read_bytes()[:-2])
    before = path.read_bytes()
    Ledger(path).rows()
    assert path.read_bytes() == before


def test_put_that_fails_leaves_the_ledger_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = filled(tmp_path / "ledger.jsonl", 2)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space"):
            ledger.put(2, {"loss": 9})
    ledger.put(2, {"loss": 1.0})
    assert [row["loss"] for row in Ledger(ledger.path).rows()] == [0.0, 0.5, 1.0]


@given(rows=ROWS, tail=ROWS, cut=st.integers(0, 5))
def test_ledger_any_rows_survive_reading_and_any_replaced_tail(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, object]], tail: list[dict[str, object]], cut: int
) -> None:
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    ledger = Ledger(path)
    cut = min(cut, len(rows))
    for seq, row in [*enumerate(rows), *enumerate(tail, start=cut)]:
        ledger.put(seq, row)
    expected = [*rows[:cut], *tail] if tail else rows
    assert ledger.rows() == Ledger(path).rows() == [row | {"seq": seq} for seq, row in enumerate(expected)]
