"""Each finding on made-up team trainings: it fires on what it is for, with its numbers, and is silent beside it."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

import made_team
from ratchet.tables import team_findings, team_history
from ratchet.tables.findings import Severity
from ratchet.tables.team_findings import in_team, in_team_timing

ROWS, CAP = 9, 32
RISING = [0.1 * n for n in range(ROWS)]
GROWING = [14, 16, 18, 20, 22, 24, 28, 29, 30]


def history(count: int = ROWS, **columns: list[Any]) -> pd.DataFrame:
    """A plain training: reward, lengths and entropies stay, nobody looked at held-out items."""
    made = made_team.rows(count)
    flat = {"reward_mean": 0.4, "eval_reward": None, "eval_reward_low": None, "eval_reward_high": None}
    for row in made:
        row |= flat | {f"agent{agent}_{name}": value for agent in (0, 1)
                       for name, value in (("entropy", 2.0), ("completion_length", 5.0))}  # fmt: skip
    return team_history.check(
        [row | {name: columns[name][n] for name in columns} for n, row in enumerate(made)], "made"
    )


def looked(first: tuple[float, float, float], last: tuple[float, float, float]) -> dict[str, list[Any]]:
    """A look at held-out items, as (reward, low, high), in the first and in the last row."""
    names = ("eval_reward", "eval_reward_low", "eval_reward_high")
    return {name: [first[n], *[None] * (ROWS - 2), last[n]] for n, name in enumerate(names)}


FIRES: dict[str, tuple[str, str, dict[str, list[Any]]]] = {
    "length": ("agent 1 may be paid for length", "reward rose from 0.100 to 0.700 while completions grew from 16 to 29 "
               "of 32 tokens", {"reward_mean": RISING, "agent1_completion_length": GROWING}),
    "entropy": ("the entropy of agent 0 collapsed", "from 2 to 0.1 nats",
                {"agent0_entropy": [2.0] * 3 + [0.5] * 3 + [0.1] * 3}),
    "silent": ("agent 1 is silent", "in 5 of 9 rows",
               {"agent1_completion_length": [5.0] * 4 + [1.0, 0.0, 1.0, 0.5, 1.0]}),
    "held out": ("held-out reward fell", "from 0.500 to 0.200", looked((0.5, 0.4, 0.6), (0.2, 0.1, 0.3))),
    "dead": ("the agents have no new ideas", "in 3 of the last 3 rows",
             {"advantage_std": [0.2] * 6 + [0.0, None, 0.0]}),
}  # fmt: skip


@pytest.mark.parametrize("name", FIRES)
def test_finding_fires_with_its_numbers(name: str) -> None:
    what, evidence, columns = FIRES[name]
    (found,) = in_team(history(**columns), CAP)
    assert found.what == what
    assert evidence in found.evidence
    assert found.severity is Severity.WARNING
    assert found.do[0].islower()


QUIET: list[dict[str, list[Any]]] = [
    {},
    {"reward_mean": RISING},
    {"reward_mean": RISING[::-1], "agent1_completion_length": GROWING},
    {"reward_mean": RISING, "agent1_completion_length": [5, 6, 7, 8, 9, 10, 11, 12, 13]},
    {"reward_mean": RISING, "agent1_completion_length": [30.0, 30.5] * 4 + [30.0]},
    {"reward_mean": [0.3] * 3 + [0.9, 0.5, 0.1] + [0.31] * 3, "agent1_completion_length": GROWING},
    {"agent0_entropy": [2.0] * 3 + [0.5] * 6},
    {"agent1_completion_length": [5.0] * 5 + [1.0] * 4},
    {"agent0_entropy": [2.0] * 6 + [None] * 3},
    {"advantage_std": [0.0] * 7 + [0.2, 0.0]},
    looked((0.5, 0.4, 0.6), (0.45, 0.35, 0.55)),
]


@pytest.mark.parametrize("columns", QUIET, ids=range(len(QUIET)))
def test_finding_is_silent_beside_it(columns: dict[str, list[Any]]) -> None:
    assert in_team(history(**columns), CAP) == []


def test_training_too_short_for_a_trend_has_no_findings() -> None:
    assert in_team(history(3, agent0_completion_length=[0.0] * 3, advantage_std=[0.0] * 3), CAP) == []


def rise(low: float, high: float) -> dict[str, Any]:
    return {"items": 64, "rise": {"mean": (low + high) / 2, "low": low, "high": high}}


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.01, 0.2, None),
        (-0.05, 0.1, "the noise is larger than the improvement claimed"),
        (-0.2, -0.1, "training rose and the held-out reward fell"),
    ],
)
def test_training_reward_that_held_out_items_do_not_share_is_told(low: float, high: float, said: str | None) -> None:
    found = in_team(history(reward_mean=RISING), CAP, rise(low, high))
    assert [each.what for each in found] == ([said] if said else [])
    if found:
        assert f"training reward from 0.100 to 0.700, held out {(low + high) / 2:+.3f} (95 %" in found[0].evidence


def test_training_that_claims_no_rise_is_silent_on_held_out_items() -> None:
    assert in_team(history(reward_mean=[0.4] * 6 + [0.419] * 3), CAP, rise(-0.1, 0.1)) == []


@pytest.mark.parametrize(("norm", "fires"), [(11.0, True), (9.0, False)])
def test_spike_of_the_gradient_is_told_with_its_env_step(norm: float, fires: bool) -> None:
    frame = history(20).assign(grad_norm=[1.0] * 15 + [norm] + [1.0] * 4)
    found = team_findings.near_misses(frame)
    assert (found is not None) is fires
    if found is not None:
        assert found.evidence == "1 spike of the gradient norm, up to 11 at env step 128 after a median of 1"


@pytest.mark.parametrize(("last", "fires"), [(80.0, True), (90.0, False)])
def test_training_that_slows_down_is_a_note(last: float, fires: bool) -> None:
    found = in_team_timing({"tokens_per_s": speed} for speed in [None, 100.0, *[100.0] * 8, *[last] * 4])
    assert [each.what for each in found] == (["training slowed down"] if fires else [])
