"""The published team trainer's log: what is read of it, what is assumed, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ratchet.core.errors import InputError
from ratchet.tables import published_team_log


def test_published_log_is_read_as_far_as_it_goes_and_says_what_was_assumed(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    logged = [
        {"_step": 0, "eval/turn_1/reward_mean": 0.2, "eval/turn_2/reward_mean": 0.1},
        {"_step": 4, "turn_1/reward_mean": 0.25, "turn_1/expected_return": 0.75, "_runtime": 3},
        {"_step": 4, "turn_2/reward_mean": 0.5, "turn_2/expected_return": 0.5},
        {"_step": 8, "turn_1/reward_mean": 0.4, "turn_1/expected_return": 0.8},
        {"_step": 8, "turn_1/reward_mean": 0.3, "turn_1/expected_return": 0.6},
        {"_runtime": 9},
    ]
    path.write_text("\n".join(map(json.dumps, logged)) + '\n{"_step": 12, "turn')
    table, assumed = published_team_log.read(path)
    assert table["env_step"].tolist() == [0, 4, 8]
    assert table["eval_reward"].iloc[0] == 0.2
    assert table["reward_mean"].iloc[1:].tolist() == [0.25, 0.3]
    assert table["return_mean"].iloc[1:].tolist() == [0.75, 0.6]
    assert assumed == [
        "the last line was torn and is left out",
        "`_step` was taken as env_step",
        "turns after the first were left out",
        "1 of its rows stood twice: the later one counts",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"loss": 1}\n', "no row has env_step, _step, step"),
        ('{"_step": 1, "loss": 2}\n', r"no row has turn_1/reward_mean \(the keys: _step, loss\)"),
        ('{"_step": \n{"_step": 1}\n', r"log\.jsonl:1: is no JSON"),
        ('3\n{"_step": 1}\n', r"log\.jsonl:1: is a int, no object"),
        ('[{"_step": 1}, 3]', r"log\.jsonl: row 2: is a int, no object"),
        ('[{"_step": 1}', r"log\.jsonl: is no JSON"),
        ('{"_step": 3.5, "turn_1/reward_mean": 1}', r"_step is 3\.5, no whole number"),
        ('{"_step": 1, "turn_1/reward_mean": "high"}', r"turn_1/reward_mean is 'high', no number"),
    ],
)
def test_published_log_without_step_or_reward_is_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        published_team_log.read(path)


def test_published_log_as_a_list_with_nan_for_what_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    rows = [{"_step": 4, "turn_1/reward_mean": 0.5}, {"_step": 4, "turn_1/reward_mean": float("nan")}, {"_step": None}]
    path.write_text(json.dumps(rows))
    table, assumed = published_team_log.read(path)
    assert table[["env_step", "reward_mean"]].to_numpy().tolist() == [[4, 0.5]]
    assert assumed == ["`_step` was taken as env_step"]
