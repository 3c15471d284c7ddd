"""Each finding on made-up sessions: it fires on what it is for, with its numbers, and is silent beside it."""

from __future__ import annotations

import pandas as pd
import pytest

import made_session
from ratchet.tables import research_findings as findings
from ratchet.tables import results
from ratchet.tables.findings import Found, Severity


def session(made: list[dict]) -> pd.DataFrame:
    """`made` as results.tsv holds it."""
    table = pd.DataFrame(made, columns=list(results.SCHEMA.columns), dtype=object)
    return results.check(table.where(table.notna() & (table != ""), None), "results.tsv")


def shaped(statuses: str, *, gain: float = 0.02, same: bool = False, reason: str = "") -> list[dict]:
    """A session by letters: k kept, d discarded, c crashed, n no proposal, s kept as simpler; `same`: one source."""
    base = made_session.rows(0)[0]
    made, best = [base], base["val_bpb"]
    for number, letter in enumerate(statuses, 1):
        row = base | {
            "commit": made_session.sha(f"{number}")[:10],
            "parent": base["commit"],
            "arena_sha": "same" if same else f"sha{number}",
            "status": {"k": "keep", "s": "keep", "d": "discard"}.get(letter, "crash"),
            "description": f"idea {number}",
            "diff_lines": 2,
            "delta": gain if letter == "k" else -0.001 if letter in "ds" else None,
            "reason": reason or {"s": "simpler: a tie"}.get(letter, "because"),
        }
        if letter == "k":
            best -= gain
        if letter in "cn":
            row |= {"val_bpb": None, "memory_gb": None}
        else:
            row["val_bpb"] = best if letter != "d" else best + 0.001
        if letter == "n":
            row |= {"commit": "", "arena_sha": "", "description": "no proposal", "diff_lines": 0}
        made.append(row)
    return made


def told(made: list[dict], **noise: float) -> dict:
    """metrics/iterate.json of `made`, its noise replaced."""
    found = made_session.metrics(made)
    found["noise"] |= noise
    return found


def test_gain_within_the_noise_is_told_with_both() -> None:
    made = shaped("dkdd", gain=0.004)
    found = findings.within_noise(session(made), told(made, sd=0.0021, threshold=0.0063))
    assert found is not None
    assert found.evidence == (
        "a gain of 0.0040 in all; 1 of 1 kept experiments gained no more, the least 0.0040; "
        "seeds alone move it by 0.0063 (sd 0.0021 over 5 seeds)"
    )
    assert "further seeds" in found.do


def test_one_small_gain_among_large_ones_is_told_and_the_whole_is_not() -> None:
    made = shaped("kk", gain=0.02)
    made[2]["delta"] = 0.003
    found = findings.within_noise(session(made), told(made))
    assert found is not None
    assert found.evidence.startswith("1 of 2 kept experiments gained no more, the least 0.0030;")


@pytest.mark.parametrize("statuses", ["kdk", "ddd", "sds", ""])
def test_gains_above_the_noise_and_sessions_that_claim_none_are_silent(statuses: str) -> None:
    made = shaped(statuses)
    assert findings.within_noise(session(made), told(made)) is None


def test_gain_that_the_test_split_does_not_show_is_told() -> None:
    made = made_session.rows()
    found = findings.lost_on_test(made_session.metrics(made, carries_over=False))
    assert found is not None
    assert "on validation" in found.evidence
    assert found.evidence.endswith("it is not told apart from none")
    worse = made_session.metrics(made, carries_over=False)
    worse["test"] |= {"gain": -0.02, "lower": -0.03, "upper": -0.01}
    found = findings.lost_on_test(worse)
    assert found is not None
    assert found.evidence.endswith("it is worse there")


def test_gain_that_carries_over_and_a_session_without_a_test_are_silent() -> None:
    assert findings.lost_on_test(made_session.metrics(made_session.rows())) is None
    assert findings.lost_on_test(made_session.metrics(shaped("ddd"))) is None


def test_proposer_that_repeats_itself_is_told() -> None:
    made = shaped("dddddd", same=True)
    found = findings.dead_proposer(session(made))
    assert found is not None
    assert found.evidence == "of the last 5 experiments 5 repeated an arena that had been tried and 0 proposed none"


def test_proposer_that_has_run_dry_is_told() -> None:
    found = findings.dead_proposer(session(shaped("kdkddnndnn")))
    assert found is not None
    assert found.evidence == "of the last 5 experiments 0 repeated an arena that had been tried and 4 proposed none"


def test_proposer_whose_candidates_all_crash_is_told_with_the_most_frequent_reason() -> None:
    made = shaped("kccccc", reason="crashed: out of memory")
    found = findings.dead_proposer(session(made))
    assert found is not None
    assert found.evidence == "all of the last 5 experiments crashed, most often with: crashed: out of memory"
    assert "program.md" in found.do


@pytest.mark.parametrize("statuses", ["dddddd", "ddddcccc", "cccc", "nnnn", "ddddddddnn"])
def test_proposer_with_new_ideas_and_a_short_session_are_silent(statuses: str) -> None:
    assert findings.dead_proposer(session(shaped(statuses))) is None


def test_gate_that_keeps_everything_is_told() -> None:
    found = findings.one_sided_gate(session(shaped("kkkck")))
    assert found is not None
    assert (found.severity, found.evidence) == (Severity.WARNING, "all 4 experiments that it judged were kept")


def test_gate_that_keeps_nothing_is_a_note_with_the_best_of_them() -> None:
    made = shaped("ddddddcdd")
    made[3]["delta"] = 0.0012
    found = findings.one_sided_gate(session(made))
    assert found is not None
    assert found.severity is Severity.NOTE
    assert found.evidence.startswith("none of 8 experiments that it judged was kept; the best came +0.0012")


@pytest.mark.parametrize("statuses", ["kkk", "ddddddd", "kddddddddd", "kkkkd", "cccccccccc", ""])
def test_gate_that_does_both_and_a_short_session_are_silent(statuses: str) -> None:
    assert findings.one_sided_gate(session(shaped(statuses))) is None


def test_best_that_is_worse_than_the_baseline_is_told() -> None:
    """Ties that were kept as simpler may add up to it."""
    made = told(shaped("ss"))
    assert findings.under_baseline(made) is None
    found = findings.under_baseline(made | {"gain": -0.003, "val_bpb": 1.603, "baseline_val_bpb": 1.6})
    assert found is not None
    assert found.evidence == "1.6030 bits per byte, the baseline has 1.6000"


@pytest.mark.parametrize(("costs", "fires"), [([1, 1, 1, 1, 1, 1.4, 1.4, 1.4], False), ([1] * 6 + [1.6] * 3, True),
                                              ([1, 1, 2, 2, 4, 4], False), ([0] * 9, False)])  # fmt: skip
def test_cost_that_accelerates_is_a_note(costs: list[float], fires: bool) -> None:
    made = shaped("d" * len(costs))
    for row, cost in zip(made[1:], costs, strict=True):
        row["cost"] = cost
    found = findings.accelerating_cost(session(made))
    assert (found is not None) is fires
    if found is not None:
        assert (found.severity, found.evidence) == (
            Severity.NOTE,
            "from 1 to 1.6 an experiment, means of the first and of the last third",
        )


def test_made_up_session_of_the_other_tests_has_no_findings_and_a_bad_one_has_all() -> None:
    made = made_session.rows()
    assert findings.in_research(session(made), told(made)) == []
    made = shaped("kkkkk", gain=0.001, same=True)
    found = findings.in_research(session(made), made_session.metrics(made, carries_over=False))
    assert len(found) == 4
    assert all(isinstance(each, Found) and each.evidence and each.do[0].islower() for each in found)
