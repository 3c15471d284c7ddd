"""Edits on a document: each has a status, none is a silent success, protected blocks stay."""

from __future__ import annotations

import pytest

from ratchet.loops.skill.records import Asked, Edit, EditStatus, Memory, Op, Usage
from ratchet.loops.skill.update import Mode, apply, parse, shown, summary, update, with_block, with_body

TEXT = "# Rules\nBe brief.\nBe brief.\nUse English.\n"


def one(text: str, op: Op, content: str = "", target: str = "") -> tuple[str, EditStatus]:
    after, applied = apply(text, [Edit(op, content, target)])
    return after, applied[0].status


@pytest.mark.parametrize(
    ("op", "content", "target", "after"),
    [
        (Op.APPEND, "Never guess.", "", "# Rules\nBe brief.\nBe brief.\nUse English.\nNever guess.\n"),
        (Op.INSERT_AFTER, "Cite.", "# Rules", "# Rules\nCite.\nBe brief.\nBe brief.\nUse English.\n"),
        (Op.REPLACE, "Be kind.", "Be brief.", "# Rules\nBe kind.\nBe brief.\nUse English.\n"),
        (Op.DELETE, "", "Be brief.\n", "# Rules\nBe brief.\nUse English.\n"),
    ],
)
def test_edit_of_each_kind_changes_the_first_exact_match_alone(op: Op, content: str, target: str, after: str) -> None:
    assert one(TEXT, op, content, target) == (after, EditStatus.APPLIED)


@pytest.mark.parametrize("op", [Op.INSERT_AFTER, Op.REPLACE, Op.DELETE])
def test_edit_whose_target_is_nowhere_changes_nothing_and_says_so(op: Op) -> None:
    content = "" if op is Op.DELETE else "x"
    assert one(TEXT, op, content, "Be  brief.") == (TEXT, EditStatus.NO_MATCH)


@pytest.mark.parametrize(
    ("op", "content", "target", "status"),
    [
        (Op.APPEND, "Use English.", "", EditStatus.NO_CHANGE),
        (Op.REPLACE, "Be brief.", "Be brief.", EditStatus.NO_CHANGE),
        (Op.APPEND, "  \n", "", EditStatus.INVALID),
        (Op.REPLACE, "x", "", EditStatus.INVALID),
        (Op.DELETE, "", " ", EditStatus.INVALID),
        (Op.APPEND, "<!-- begin slow_update -->", "", EditStatus.INVALID),
    ],
)
def test_edit_that_is_incomplete_or_changes_nothing_has_its_own_status(
    op: Op, content: str, target: str, status: EditStatus
) -> None:
    assert one(TEXT, op, content, target) == (TEXT, status)


def test_edit_inside_a_protected_block_is_refused_and_the_block_stays() -> None:
    text = with_block(TEXT, "slow_update", "Keep units.")
    assert one(text, Op.DELETE, "", "Keep units.") == (text, EditStatus.PROTECTED)
    after, status = one(text, Op.APPEND, "Never guess.")
    assert status is EditStatus.APPLIED
    assert parse(after).blocks == {"slow_update": "Keep units."}
    assert after.index("Never guess.") < after.index("Keep units.")


def test_block_is_replaced_removed_and_kept_by_a_rewritten_body() -> None:
    text = with_block(with_block("", "slow_update", "one"), "slow_update", "two")
    assert text.count("begin slow_update") == 1
    assert parse(with_body(text, "new\n\n<!-- begin appendix -->\nsly\n<!-- end appendix -->")).blocks == {
        "slow_update": "two"
    }
    assert with_block(text, "slow_update", "") == ""


def test_shown_has_the_text_of_blocks_without_their_marks() -> None:
    assert shown(with_block("Be brief.", "appendix", "Units.")) == "Be brief.\n\nUnits."


def test_edits_apply_one_after_the_other_and_are_counted() -> None:
    edits = [Edit(Op.APPEND, "A"), Edit(Op.REPLACE, "B", "A"), Edit(Op.DELETE, "", "A"), Edit(Op.REPLACE, "", "")]
    after, applied = apply("", edits)
    assert after == "B\n"
    assert summary(applied) == {"total": 4, "applied": 2, "skipped": 1, "errors": 1}


class Writer:
    """An optimizer that only rewrites."""

    def rewrite(self, memory: Memory, edits: object) -> Asked[str]:
        return Asked("Written anew.", Usage(1, 2, 3))


def test_update_in_rewrite_mode_asks_once_keeps_blocks_and_marks_every_edit() -> None:
    text = with_block(TEXT, "slow_update", "Keep units.")
    made = update(Memory(text), [Edit(Op.APPEND, "x"), Edit(Op.APPEND, "y")], Mode.REWRITE, Writer())  # type: ignore[arg-type]
    assert (parse(made.text).body, parse(made.text).blocks) == ("Written anew.", {"slow_update": "Keep units."})
    assert [each.status for each in made.applied] == [EditStatus.REWRITTEN] * 2
    assert (summary(made.applied)["applied"], made.usage) == (2, Usage(1, 2, 3))


def test_update_in_rewrite_mode_without_edits_asks_nobody() -> None:
    assert update(Memory(TEXT), [], Mode.REWRITE, None).text == TEXT  # type: ignore[arg-type]
