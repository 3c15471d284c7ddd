"""history.json of the team loop: its schema, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ratchet.core.errors import InputError
from ratchet.tables import team_history
from ratchet.tables.conform import TableError

ROWS = 9


def row(number: int, agents: int = 2, **changed: Any) -> dict[str, Any]:
    """A plain row: a reward that stays, lengths and entropies that stay."""
    plain = {
        "seq": number, "epoch": number / 4, "env_step": 8 * number, "reward_mean": 0.4 + 0.001 * (number % 2),
        "return_mean": 0.4, "advantage_std": 0.2, "loss": -0.01, "grad_norm": 1.5, "kl": 0.0, "entropy": 2.0,
        "skipped_updates": 0,
        "eval_reward": None, "eval_reward_low": None, "eval_reward_high": None, "tokens": 100 * number,
    }  # fmt: skip
    for agent in range(agents):
        each = {"reward": 0.4, "loss": 0.0, "grad_norm": 1.0, "entropy": 2.0, "kl": 0.0, "completion_length": 5.0}
        plain |= {f"agent{agent}_{name}": value for name, value in each.items()}
    return plain | changed


def rows(count: int = ROWS, **columns: list[Any]) -> list[dict[str, Any]]:
    return [row(n + 1, **{name: values[n] for name, values in columns.items()}) for n in range(count)]


@pytest.mark.parametrize("agents", [1, 2, 3])
def test_history_of_any_number_of_agents_is_read_back(agents: int, tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    path.write_text(json.dumps([row(n, agents, eval_reward=0.5 if n == 2 else None) for n in (1, 2, 3)]))
    table = team_history.read(path)
    assert team_history.agents_of(list(table.columns)) == agents
    assert table["env_step"].tolist() == [8, 16, 24]
    assert table["env_step"].dtype == "int64"
    assert table["eval_reward"].isna().tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"env_step": [8, 16, 16]}, r"env_step, record 3: 16 \(must be greater than in the row above\)"),
        ({"seq": [1, 2, 2]}, r"seq, record 3: 2 \(must be greater than in the row above\)"),
        ({"seq": [1, 2, 5]}, r"seq, record 3: rows 3 to 4 are missing"),
        ({"epoch": [1.0, 2.0, 1.5]}, r"epoch, record 3: 1\.5"),
        ({"loss": [0.0, float("nan"), 0.0]}, r"key loss, record 2: nan \(must be a finite number, or null\)"),
        ({"reward_mean": [0.0, None, 0.0]}, r"reward_mean, record 2: empty \(must hold a value\)"),
        ({"grad_norm": [0.0, float("inf"), 0.0]}, r"grad_norm, record 2: inf"),
        ({"agent1_completion_length": [5.0, -1.0, 5.0]}, r"agent1_completion_length, record 2: -1\.0"),
        ({"tokens": [100, 200, 150]}, "tokens, record 3: 150"),
    ],
)
def test_history_unfit_record_is_named_with_field_and_rule(columns: dict[str, list[Any]], said: str) -> None:
    with pytest.raises(TableError, match=said):
        team_history.check(rows(3, **columns), "history.json")


def test_history_that_lacks_a_column_of_one_agent_names_it() -> None:
    torn = [{name: value for name, value in each.items() if name != "agent0_kl"} for each in rows(2)]
    with pytest.raises(TableError, match="agent0_kl is missing"):
        team_history.check(torn, "history.json")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "died before its first"),
        ('[{"seq": 1, "epo', "may be cut off"),
        ('{"seq": 1}', "not a list"),
        (None, "no such file"),
    ],
)
def test_history_that_is_empty_torn_or_missing_is_an_error_naming_the_log(
    text: str | None, said: str, tmp_path: Path
) -> None:
    log = tmp_path / "runs/team/abc/team.log"
    log.parent.mkdir(parents=True)
    log.touch()
    path = tmp_path / "history.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=said) as error:
        team_history.read(path, runs=tmp_path / "runs")
    assert "not a list" in said or str(log) in str(error.value)
