"""The findings on results that were made for real: the committed metrics of the default run have none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ratchet.core.errors import InputError
from ratchet.tables import findings, research_findings, skill_findings, team_findings, training_findings
from ratchet.tables.findings import Found, Severity

ROOT = Path(__file__).resolve().parents[3]
NOTE = Found(Severity.NOTE, "slow", "10 of 12", "wait")


def committed(stage: str) -> dict[str, Any]:
    return json.loads((ROOT / f"metrics/{stage}.json").read_text())


def test_committed_judgement_is_no_finding() -> None:
    assert training_findings.in_evaluation(committed("evaluate"), committed("train")) == []


def test_committed_session_is_no_finding() -> None:
    told = committed("iterate")
    assert research_findings.under_baseline(told) is None
    assert research_findings.lost_on_test(told) is None
    assert research_findings.within_noise(pd.DataFrame({"status": [], "delta": [], "reason": pd.Series([], dtype=str)}),
                                          told) is None  # fmt: skip


def test_committed_skill_is_told_apart_from_chance() -> None:
    told = committed("skill")
    history = pd.DataFrame({"best_score": [told["val"]["best"]["hard"]]})
    assert skill_findings.on_test(history, told["val"]["seed"]["hard"], told["test"]) == []


def test_committed_team_earns_more_on_held_out_items_too() -> None:
    told = committed("team")
    reward = told["train_reward"]
    history = pd.DataFrame({"reward_mean": [reward["first_epoch"]] * 4 + [reward["last_epoch"]] * 4})
    assert team_findings.on_held_out(history, told["held_out"]) == []


def test_findings_are_the_same_after_a_file() -> None:
    assert findings.read(json.loads(json.dumps(findings.plain([NOTE]))), Path("x"), "do") == [NOTE]
    assert (NOTE.sentence, NOTE.line) == ("slow: 10 of 12; wait", "NOTE: slow: 10 of 12; wait")


@pytest.mark.parametrize("value", ["look", ["a text"], [{"severity": "loud"}], [{"severity": "note"}], None])
def test_findings_that_are_none_are_refused(value: object) -> None:
    with pytest.raises(InputError, match="no list of findings; mend it"):
        findings.read(value, Path("summary.json"), "mend it")
