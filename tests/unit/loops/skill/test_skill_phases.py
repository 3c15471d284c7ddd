"""Phases as functions over records: what goes in, in which order it comes out, and how many calls it takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from ratchet.loops.skill.aggregate import aggregate, merge_calls
from ratchet.loops.skill.builtin import FORMAT_RULE, MOST_EXAMPLES, BuiltinOptimizer
from ratchet.loops.skill.meta_skill import meta_skill
from ratchet.loops.skill.parallel import in_order
from ratchet.loops.skill.records import Asked, Edit, Kind, Memory, Op, Pair, Patch, Rejected, Row, Task, Usage
from ratchet.loops.skill.reflect import minibatches, reflect
from ratchet.loops.skill.rollout import batch
from ratchet.loops.skill.scoring import score
from ratchet.loops.skill.select import select
from ratchet.loops.skill.update import apply

BUILTIN = BuiltinOptimizer()


def rows(wrong: int, right: int = 0) -> list[Row]:
    made = [score(Task(f"w{n}", f"Symbol of {n}?", (f"S{n}",)), "?") for n in range(wrong)]
    return made + [score(Task(f"r{n}", f"What is {n}?", (str(n),)), str(n)) for n in range(right)]


def patch(kind: Kind, *contents: str) -> Patch:
    return Patch(kind, tuple(Edit(Op.APPEND, content) for content in contents))


class Counting:
    """An optimizer that counts its calls and says what it was asked."""

    def __init__(self) -> None:
        self.merged: list[list[str]] = []
        self.ranked = 0

    def reflect(self, memory: Memory, kind: Kind, seen: Sequence[Row]) -> Asked[Patch]:
        time.sleep(0.001 * (len(seen) % 3))
        return Asked(patch(kind, *(row.id for row in seen)), Usage(1, 10, 1))

    def merge(self, memory: Memory, patches: Sequence[Patch]) -> Asked[Patch]:
        self.merged.append([edit.content for each in patches for edit in each.edits])
        return Asked(Patch(patches[0].kind, tuple(e for each in patches for e in each.edits)), Usage(1, 5, 5))

    def rank(self, memory: Memory, edits: Sequence[Edit]) -> Asked[list[int]]:
        self.ranked += 1
        return Asked(list(range(len(edits)))[::-1], Usage(1, 1, 1))


def test_in_order_keeps_the_items_order_whoever_is_first_and_uses_all_workers() -> None:
    seen: set[int] = set()
    barrier = threading.Barrier(4)

    def late(number: int) -> int:
        barrier.wait(5)
        time.sleep(0.002 * (4 - number))
        seen.add(threading.get_ident())
        return number

    assert in_order(late, range(4), 4) == [0, 1, 2, 3]
    assert len(seen) == 4


def test_in_order_raises_the_error_of_the_earliest_item_and_begins_nothing_more() -> None:
    begun: list[int] = []

    def fails(number: int) -> int:
        begun.append(number)
        if number in (1, 2):
            raise ValueError(number)
        time.sleep(0.05)
        return number

    with pytest.raises(ValueError, match="1"):
        in_order(fails, range(200), 2)
    assert len(begun) < 20


def test_batches_of_an_epoch_hold_each_task_once_and_epochs_differ() -> None:
    tasks = [Task(str(n), "q", ("a",)) for n in range(25)]
    epochs = [[batch(tasks, 1, epoch, step, 10) for step in (1, 2, 3)] for epoch in (1, 2)]
    for epoch in epochs:
        assert [len(found) for found in epoch] == [10, 10, 5]
        assert {task.id for found in epoch for task in found} == {task.id for task in tasks}
    assert epochs[0] != epochs[1]
    assert epochs[0][0] == batch(tasks, 1, 1, 1, 10)


def test_minibatches_are_of_one_kind_failures_first_each_row_once() -> None:
    given = rows(5, 4)
    found = minibatches(given[::-1], 2, seed=3, step=1)
    assert [each.kind for each in found] == [Kind.FAILURE] * 3 + [Kind.SUCCESS] * 2
    assert sorted(row.id for each in found for row in each.rows) == sorted(row.id for row in given)
    assert all((row.hard == 1) == (each.kind is Kind.SUCCESS) for each in found for row in each.rows)
    assert found != minibatches(given[::-1], 2, seed=3, step=2)


def test_reflect_gives_patches_in_the_order_of_minibatches_and_counts_every_call() -> None:
    found = minibatches(rows(7, 3), 2, seed=1, step=1)
    one, many = (reflect(Memory(""), found, Counting(), workers) for workers in (1, 8))
    assert one == many
    assert (one.count(Kind.FAILURE), one.count(Kind.SUCCESS)) == (4, 2)
    assert one.usage == Usage(6, 60, 6)
    failures = reflect(Memory(""), found, Counting(), 1, failure_only=True)
    assert (failures.count(Kind.SUCCESS), failures.usage.calls) == (0, 4)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 9])
def test_aggregate_merges_in_a_tree_with_failures_first_and_the_calls_that_were_forecast(count: int) -> None:
    patches = [patch(Kind.SUCCESS if n % 2 else Kind.FAILURE, f"e{n}") for n in range(count)]
    optimizer = Counting()
    merged = aggregate(Memory(""), patches, optimizer, merge_batch_size=3, workers=2)
    assert merged.usage.calls == merge_calls(count, 3) == len(optimizer.merged)
    order = [edit.content for edit in merged.value.edits]
    assert order == [f"e{n}" for n in range(0, count, 2)] + [f"e{n}" for n in range(1, count, 2)]


def test_select_asks_only_when_the_edits_do_not_fit_the_budget() -> None:
    optimizer, three = Counting(), patch(Kind.FAILURE, "a", "b", "c")
    assert select(Memory("", edit_budget=3), three, optimizer).value == three.edits
    assert optimizer.ranked == 0
    best = select(Memory("", edit_budget=2), three, optimizer)
    assert ([edit.content for edit in best.value], best.usage.calls) == (["c", "b"], 1)


def test_meta_skill_is_drawn_from_the_epoch_before_and_not_before_the_third() -> None:
    class Learner:
        def remember(self, memory: Memory, steps: Sequence[Any]) -> Asked[str]:
            return Asked(",".join(str(step["step"]) for step in steps), Usage(1))

    history = [{"step": n, "epoch": 1 + n // 2} for n in range(6)]
    drawn = {epoch: meta_skill(Memory(""), epoch, history, Learner()) for epoch in (1, 2, 3, 4)}  # type: ignore[arg-type]
    assert [drawn[epoch].value for epoch in (1, 2, 3, 4)] == ["", "", "2,3", "4,5"]
    assert drawn[2].usage == Usage()


def test_builtin_adds_worked_examples_of_failures_within_the_budget_and_learns_nothing_from_successes() -> None:
    memory = Memory("", edit_budget=3)
    found = BUILTIN.reflect(memory, Kind.FAILURE, rows(5)).value
    assert [edit.op for edit in found.edits] == [Op.APPEND] * 3
    assert found.edits[0].content == "Q: Symbol of 0?\nA: S0"
    assert BUILTIN.reflect(memory, Kind.SUCCESS, rows(0, 3)).value.edits == ()


def test_builtin_replaces_the_oldest_example_when_there_is_no_room() -> None:
    text = "\n".join(f"Q: Old {n}?\nA: O{n}" for n in range(MOST_EXAMPLES)) + "\n"
    found = BUILTIN.reflect(Memory(text, edit_budget=2), Kind.FAILURE, rows(2)).value
    assert [(edit.op, edit.target) for edit in found.edits] == [
        (Op.REPLACE, "Q: Old 0?\nA: O0"),
        (Op.REPLACE, "Q: Old 1?\nA: O1"),
    ]
    after, applied = apply(text, found.edits)
    assert after.count("Q: ") == MOST_EXAMPLES
    assert all(str(each.status) == "applied" for each in applied)


def test_builtin_drops_an_example_that_is_parroted_and_states_the_format_when_more_is_said() -> None:
    text = "Q: Symbol of iron?\nA: Fe\n"
    tasks = [Task(f"t{n}", f"Symbol of {n}?", (f"S{n}",)) for n in range(4)]
    parroted = BUILTIN.reflect(Memory(text), Kind.FAILURE, [score(task, "Fe") for task in tasks]).value
    assert parroted.edits[0].op is Op.DELETE
    assert parroted.edits[0].target == "Q: Symbol of iron?\nA: Fe"
    wordy = BUILTIN.reflect(Memory(""), Kind.FAILURE, [score(t, f"It is {t.answers[0]}") for t in tasks]).value
    assert wordy.edits[0].content == FORMAT_RULE


def test_builtin_does_not_propose_again_what_the_gate_turned_down() -> None:
    first = BUILTIN.reflect(Memory(""), Kind.FAILURE, rows(3)).value.edits
    rejected = tuple(Rejected(1, edit, 0.0) for edit in first[:2])
    again = BUILTIN.reflect(Memory("", rejected), Kind.FAILURE, rows(3)).value.edits
    assert again == first[2:]


def test_builtin_merges_equal_edits_ranks_by_support_and_guides_by_what_was_lost() -> None:
    merged = BUILTIN.merge(Memory(""), [patch(Kind.FAILURE, "a", "b"), patch(Kind.FAILURE, "b", "c")]).value
    assert [(edit.content, edit.support) for edit in merged.edits] == [("a", 1), ("b", 2), ("c", 1)]
    assert BUILTIN.rank(Memory(""), merged.edits).value == [1, 0, 2]
    right, wrong = rows(0, 1)[0], rows(1)[0]
    assert BUILTIN.guide(Memory(""), "", [Pair(right, wrong)]).value == "Q: Symbol of 0?\nA: S0"
    assert BUILTIN.guide(Memory(""), "", [Pair(wrong, right)]).value == ""


def test_builtin_remembers_what_was_turned_down_and_proposes_it_last() -> None:
    steps = [{"action": "reject", "edits": [{"op": "append", "status": "applied"}]}]
    lessons = BUILTIN.remember(Memory(""), steps).value
    full = "\n".join(f"Q: Old {n}?\nA: O{n}" for n in range(MOST_EXAMPLES - 1))
    plain = BUILTIN.reflect(Memory(full, edit_budget=2), Kind.FAILURE, rows(2)).value.edits
    taught = BUILTIN.reflect(Memory(full, meta_skill=lessons, edit_budget=2), Kind.FAILURE, rows(2)).value.edits
    assert [edit.op for edit in plain] == [Op.APPEND, Op.REPLACE]
    assert [edit.op for edit in taught] == [Op.REPLACE, Op.APPEND]
