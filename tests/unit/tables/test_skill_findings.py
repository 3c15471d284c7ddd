"""Each finding on made-up skill trainings: it fires on what it is for, with its numbers, and is silent beside it."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

import made_skill
from ratchet.tables import skill_findings, skill_history
from ratchet.tables.findings import Severity
from ratchet.tables.skill_findings import in_skill

STEPS = 6


def history(steps: int = STEPS, **columns: list[Any]) -> pd.DataFrame:
    """A training that goes well: every second candidate is kept, each of them new."""
    actions = [("accept_new_best", "reject")[step % 2] for step in range(steps)]
    made = [made_skill.record(step, action, 0.5, 0.5, 1) for step, action in enumerate(actions, 1)]
    for record in made:
        record["rollout_hard"] = record["rollout_soft"] = 0.5
        record["edit_budget"] = max(1, record["edit_budget"])
        record["tokens"]["rollout"] = made_skill.usage(40, 840, 160)
    return skill_history.check(made, "made").assign(**columns)


def test_training_that_goes_well_has_no_findings() -> None:
    assert in_skill(history(), 0.4, {"use_slow_update": False}, made_skill.metrics(STEPS)["test"]) == []
    assert in_skill(history(1), None) == []


FIRES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "under the seed": ("validation is under the seed document", "it ended at 0.300, the seed document has 0.400",
                       {"current_score": [0.5] * 5 + [0.3]}),
    "budget": ("the learning rate jumps", "the edit budget goes from 2 to 8 at step 6; a schedule only falls",
               {"edit_budget": [8, 6, 4, 2, 2, 8]}),
    "all": ("the gate accepts everything", "all 6 candidates: it tells nothing apart",
            {"action": ["accept_new_best"] * STEPS}),
    "none": ("the gate accepts nothing", "none of 6 candidates", {"action": ["reject"] * STEPS}),
    "tokens": ("token use accelerates", "from 1,000 to 1,600 tokens a step",
               {"tokens.rollout.prompt_tokens": [9e6, 840, 840, 840, 1440, 1440]}),
}  # fmt: skip


@pytest.mark.parametrize("name", FIRES)
def test_finding_fires_with_its_numbers(name: str) -> None:
    what, evidence, columns = FIRES[name]
    (found,) = in_skill(history(**columns), 0.4)
    assert found.what == what
    assert evidence in found.evidence
    assert found.severity is Severity.WARNING
    assert found.do[0].islower()


QUIET: list[dict[str, Any]] = [
    {"current_score": [0.5] * 5 + [0.4]},
    {"edit_budget": [8, 8, 4, 4, 2, 2]},
    {"action": ["reject"] * 5 + ["force_accept"]},
    {"action": ["reject"] * 3 + ["skip_no_patches"] * 3},
    {"tokens.rollout.prompt_tokens": [100, 840, 840, 1000, 1300, 1300]},
    {"candidate_hash": ["a", "a", "a", "b", "c", "d"]},
    {"n_edits_ranked": [2, 2, 2, 0, 0, 0], "rollout_hard": [0.5] * 3 + [1.0] * 3},
]


@pytest.mark.parametrize("columns", QUIET, ids=range(len(QUIET)))
def test_finding_is_silent_beside_it(columns: dict[str, Any]) -> None:
    assert in_skill(history(**columns), 0.4) == []


def test_tokens_that_accelerate_name_both_knobs() -> None:
    found = skill_findings.accelerating_tokens(history(**FIRES["tokens"][2]))
    assert found is not None
    assert "minibatch_size and merge_batch_size" in found.do


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"candidate_hash": ["a", "b", "b", "b", "b", "b"]}, "of the last 4 steps 0 selected no edit although tasks "
         "failed, 4 repeated a document"),
        ({"n_edits_ranked": [2, 2, 2, 0, 0, 0]}, "of the last 4 steps 3 selected no edit although tasks failed, "
         "0 repeated a document"),
    ],
)  # fmt: skip
def test_optimizer_without_new_ideas_is_told(columns: dict[str, Any], said: str) -> None:
    found = skill_findings.dead_optimizer(history(**columns))
    assert found is not None
    assert found.evidence == said


def test_slow_update_left_on_is_a_note() -> None:
    (found,) = in_skill(history(), 0.4, {"use_slow_update": True})
    assert (found.severity, found.what) == (Severity.NOTE, "slow_update is on")
    assert "in production" in found.do


def tried(gain: float, p: float) -> dict[str, Any]:
    return made_skill.metrics(STEPS)["test"] | {"gain": {"hard": gain, "p": p}}


@pytest.mark.parametrize(
    ("gain", "p", "said"),
    [
        (-0.02, 0.7, "validation rose and the test fell"),
        (0.02, 0.2, "the noise is larger than the improvement claimed"),
        (0.1, 0.05, None),
        (0.0, 1.0, "the noise is larger than the improvement claimed"),
    ],
)
def test_gain_that_the_test_does_not_show_is_told(gain: float, p: float, said: str | None) -> None:
    found = skill_findings.on_test(history(), 0.4, tried(gain, p))
    assert [each.what for each in found] == ([said] if said else [])
    if found:
        assert f"+0.100 on validation, {gain:+.3f} on 64 test tasks" in found[0].evidence


def test_test_of_a_training_that_claims_nothing_is_silent() -> None:
    assert skill_findings.on_test(history(), 0.5, tried(-0.1, 0.9)) == []
    assert skill_findings.on_test(history(), None, tried(-0.1, 0.9)) == []
    assert skill_findings.on_test(history(), 0.4, {}) == []


@pytest.mark.parametrize(("last", "fires"), [(12.0, True), (10.0, False)])
def test_loop_that_slows_down_is_a_note(last: float, fires: bool) -> None:
    """Thirteen steps: the first is left out, the last four take longer for the same tokens."""
    found = in_skill(history(13, wall_time_s=[9.0] * 9 + [last] * 4), 0.4)
    assert [each.what for each in found] == (["the loop slowed down"] if fires else [])
