"""Intervals are found by the three ways of writing them, and stand with their figure."""

from __future__ import annotations

from ratchet.tables.intervals import Figure, figures


def test_each_way_of_writing_an_interval_is_found_and_its_ends_stand_nowhere_else() -> None:
    told = figures({
        "team.trained.mean": 0.5, "team.trained.low": 0.4, "team.trained.high": 0.6,
        "skill.hard": 0.7, "skill.hard_interval": [0.6, 0.8],
        "iterate.test.gain": 0.02, "iterate.test.lower": 0.01, "iterate.test.upper": 0.03,
        "iterate.gain": 0.05, "train.mean": 3.0, "train.low": 2,
    })  # fmt: skip
    assert told == {
        "team.trained.mean": Figure(0.5, 0.4, 0.6),
        "skill.hard": Figure(0.7, 0.6, 0.8),
        "iterate.test.gain": Figure(0.02, 0.01, 0.03),
        "iterate.gain": Figure(0.05),
        "train.mean": Figure(3.0),
        "train.low": Figure(2),
    }
    assert str(told["skill.hard"]) == "0.7 (0.6 to 0.8)"
    assert str(told["iterate.gain"]) == "0.05"
