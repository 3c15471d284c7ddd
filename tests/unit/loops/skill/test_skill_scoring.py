"""Whether an answer is right."""

from __future__ import annotations

import pytest

from ratchet.loops.skill.records import Task
from ratchet.loops.skill.scoring import mean, normalise, score

PARIS = Task("a", "Capital of France?", ("Paris", "City of Paris"))


@pytest.mark.parametrize(
    ("said", "hard", "contains", "soft"),
    [
        ("Paris", 1, 1, 1.0),
        (" the PARIS. ", 1, 1, 1.0),
        ("city of paris", 1, 1, 1.0),
        ("Paris, France", 0, 1, 2 / 3),
        ("Parisian", 0, 0, 0.0),
        ("", 0, 0, 0.0),
        ("I think it is Lyon", 0, 0, 0.0),
    ],
)
def test_score_of_an_answer(said: str, hard: int, contains: int, soft: float) -> None:
    row = score(PARIS, said)
    assert (row.hard, row.contains, row.soft) == (hard, contains, pytest.approx(soft))
    assert bool(row.fail_reason) == (not hard)


def test_score_of_an_answer_made_of_an_article_alone_is_not_lost() -> None:
    assert score(Task("a", "First letter?", ("A",)), "A").hard == 1
    assert score(Task("a", "First letter?", ("A",)), "B").hard == 0


def test_score_does_not_depend_on_how_letters_are_composed_or_on_the_locale() -> None:
    assert score(Task("a", "q", ("Bogotá",)), "Bogota\u0301").hard == 1
    assert normalise("ÎLE") == "île"


def test_mean_of_no_rows_is_an_error_not_a_zero() -> None:
    with pytest.raises(ValueError, match="no rows"):
        mean([])
