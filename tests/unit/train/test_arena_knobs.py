"""The knobs of an arena as text: read, refused, rewritten without touching another character."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from ratchet.core.errors import InputError
from ratchet.train.arena import Knob, knobs, with_knobs

ARENA = Path(__file__).parents[3] / "arena/train.py"
SOURCE = '''"""Ein Beispiel: Länge, 長さ."""
from typing import Annotated

DEPTH: Annotated[int, 1, 24] = 4  # Tiefe, 深さ
RATE: Annotated[float, 0.002, 0.2, "log"] = 0.02
WINDOW: Annotated[str, "L", "SSSL"] = "L"; OTHER: Annotated[int, (8, 16)] = (
    8
)
PLAIN = 3
TYPED: int = 5
'''


def test_knobs_of_a_source_are_read_in_its_order() -> None:
    assert list(knobs(SOURCE).values()) == [
        Knob("DEPTH", "int", 1, 24, False, (), 4),
        Knob("RATE", "float", 0.002, 0.2, True, (), 0.02),
        Knob("WINDOW", "str", None, None, False, ("L", "SSSL"), "L"),
        Knob("OTHER", "int", None, None, False, (8, 16), 8),
    ]


def test_knobs_of_the_shipped_arena_hold_the_published_setting() -> None:
    known = knobs(ARENA.read_text(encoding="utf-8"))
    values = {name: knob.value for name, knob in known.items()}
    wanted = {"DEPTH": 4, "HEADS": 2, "HEAD_DIM": 128, "BATCH_ROWS": 16, "ACCUMULATION": 1, "WINDOW_PATTERN": "L"}
    assert wanted.items() <= values.items()
    for gpu in ({"DEPTH": 8, "HEADS": 4, "BATCH_ROWS": 128, "ACCUMULATION": 2},):  # 2^19 tokens of context 2048
        with_knobs(ARENA.read_text(encoding="utf-8"), gpu)


def test_with_knobs_of_new_values_changes_nothing_but_the_values() -> None:
    changed = with_knobs(SOURCE, {"DEPTH": 12, "RATE": 0.1, "WINDOW": "SSSL", "OTHER": 16})
    assert {name: knob.value for name, knob in knobs(changed).items()} == {
        "DEPTH": 12,
        "RATE": 0.1,
        "WINDOW": "SSSL",
        "OTHER": 16,
    }
    assert "DEPTH: Annotated[int, 1, 24] = 12  # Tiefe, 深さ\n" in changed
    assert 'WINDOW: Annotated[str, "L", "SSSL"] = "SSSL"; OTHER: Annotated[int, (8, 16)] = (\n    16\n)' in changed
    touched = [line for line in difflib.ndiff(SOURCE.splitlines(), changed.splitlines()) if line[0] in "+-"]
    assert len(touched) == 8


def test_with_knobs_of_the_present_values_is_the_identity() -> None:
    source = ARENA.read_text(encoding="utf-8")
    assert with_knobs(source, {}) == source
    assert with_knobs(source, {"DEPTH": 4, "WINDOW_PATTERN": "L", "MATRIX_LR": 0.04}) == source


def test_with_knobs_of_a_whole_number_for_a_float_writes_a_float() -> None:
    assert "SOFT_CAP: Annotated[float, 5.0, 100.0] = 30.0" in with_knobs(
        "SOFT_CAP: Annotated[float, 5.0, 100.0] = 15.0\n", {"SOFT_CAP": 30}
    )


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"DEPHT": 2}, "arena.py: no knob 'DEPHT'; did you mean 'DEPTH'?"),
        ({"ZZZZ": 2}, "arena.py: no knob 'ZZZZ'; the knobs are DEPTH, RATE, WINDOW, OTHER"),
        ({"PLAIN": 2}, "arena.py: no knob 'PLAIN'; the knobs are DEPTH, RATE, WINDOW, OTHER"),
        ({"DEPTH": 25}, "DEPTH = 25 is outside 1 to 24;"),
        ({"DEPTH": 2.0}, "DEPTH = 2.0 is no int;"),
        ({"DEPTH": True}, "DEPTH = True is no int;"),
        ({"RATE": "fast"}, "RATE = 'fast' is no float;"),
        ({"RATE": float("nan")}, "RATE = nan is outside 0.002 to 0.2;"),
        ({"WINDOW": "M"}, "WINDOW = 'M' is none of 'L', 'SSSL';"),
        ({"OTHER": 12}, "OTHER = 12 is none of 8, 16;"),
    ],
)
def test_with_knobs_of_what_is_not_allowed_is_refused(values: dict[str, int], says: str) -> None:
    with pytest.raises(InputError) as caught:
        with_knobs(SOURCE, values, "arena.py")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("A: Annotated[int, 1] = 1", "arena.py:2: knob A has the annotation Annotated[int, 1];"),
        ("A: Annotated[int, 5, 1] = 3", "arena.py:2: knob A has the annotation Annotated[int, 5, 1];"),
        ('A: Annotated[float, 0.0, 1.0, "log"] = 0.5', "knob A has the annotation"),
        ('A: Annotated[float, 0.1, 1.0, "lgo"] = 0.5', "knob A has the annotation"),
        ("A: Annotated[bool, 0, 1] = 0", "knob A has the annotation"),
        ("A: Annotated[int, 1, 9] = B + 1", "arena.py:2: knob A is not made of literals;"),
        ("A: Annotated[int, 1, 9] = 10", "arena.py:2: A = 10 is outside 1 to 9;"),
        ("A: Annotated[int, 1, 9 = 10", "arena.py:2: no Python:"),
    ],
)
def test_knobs_of_a_malformed_line_are_refused_with_its_number(line: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        knobs(f"from typing import Annotated\n{line}\n", "arena.py")
    assert says in str(caught.value)
