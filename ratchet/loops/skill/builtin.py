"""The embedded optimizer: no key, no network, no model. It reflects on failures by rule and proposes bounded edits.

It adds worked examples made of tasks that went wrong, replaces the oldest one when there is no room, drops one whose
answer is parroted, and states a format when the agent says more than the answer. Refuses to know what the tasks are
about, and never sees validation or test tasks.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ratchet.loops.skill.records import Asked, Edit, Kind, Memory, Op, Pair, Patch, Row
from ratchet.loops.skill.scoring import normalise
from ratchet.loops.skill.update import apply, parse

MOST_EXAMPLES = 12
"""More of them cost the agent time and no longer help a small model."""
FORMAT_RULE = "Answer with the answer alone, on one line."
_EXAMPLE = re.compile(r"^Q: (?P<question>[^\n]*)\nA: (?P<answer>[^\n]*)$", re.MULTILINE)


def example(row: Row) -> str:
    """A worked example of one task."""
    return f"Q: {' '.join(row.question.split())}\nA: {' '.join(row.answers[0].split())}"


class BuiltinOptimizer:
    """Pure functions of what they are shown; calls cost nothing."""

    def reflect(self, memory: Memory, kind: Kind, rows: Sequence[Row]) -> Asked[Patch]:
        """Edits from the failures of a minibatch, what helps most tasks first. Successes ask for none."""
        if kind is Kind.SUCCESS:
            return Asked(Patch(kind, ()))
        body = parse(memory.skill).body
        examples = list(_EXAMPLE.finditer(body))
        edits = [*_parroted(examples, rows), *_format_rule(body, rows), *_examples(body, examples, rows)]
        turned_down = {(each.edit.op, each.edit.target, each.edit.content) for each in memory.rejected}
        fresh = [edit for edit in edits if (edit.op, edit.target, edit.content) not in turned_down]
        return Asked(Patch(kind, tuple(_favoured(fresh, memory)[: memory.edit_budget])))

    def merge(self, memory: Memory, patches: Sequence[Patch]) -> Asked[Patch]:
        """Equal edits become one whose support adds up; the first of two that want the same text stays."""
        merged: dict[tuple[str, str, str], Edit] = {}
        for edit in (edit for patch in patches for edit in patch.edits):
            key = (str(edit.op), edit.target, "" if edit.target else edit.content)
            known = merged.get(key)
            merged[key] = replace(known, support=known.support + edit.support) if known else edit
        return Asked(Patch(patches[0].kind, tuple(merged.values())))

    def rank(self, memory: Memory, edits: Sequence[Edit]) -> Asked[list[int]]:
        """Most support first, then the order of proposal."""
        return Asked(sorted(range(len(edits)), key=lambda place: -edits[place].support))

    def rewrite(self, memory: Memory, edits: Sequence[Edit]) -> Asked[str]:
        """The document with the edits applied: a rule has no other way of writing."""
        return Asked(apply(memory.skill, edits)[0])

    def guide(self, memory: Memory, previous: str, pairs: Sequence[Pair]) -> Asked[str]:
        """Worked examples of up to three tasks that were lost since `previous`; nothing when none was."""
        lost = [example(pair.after) for pair in pairs if pair.before.hard > pair.after.hard]
        return Asked("\n\n".join(text for text in lost[:3] if text not in memory.skill))

    def remember(self, memory: Memory, steps: Sequence[Mapping[str, Any]]) -> Asked[str]:
        """How often each kind of edit was in a step that was accepted, and how often in one that was rejected."""
        tried: dict[str, Counter[str]] = {"accepted": Counter(), "rejected": Counter()}
        for step in steps:
            outcome = "rejected" if step["action"] == "reject" else "accepted"
            tried[outcome].update(edit["op"] for edit in step.get("edits", ()) if edit["status"] == "applied")
        return Asked(json.dumps(tried, sort_keys=True))


def _favoured(edits: list[Edit], memory: Memory) -> list[Edit]:
    """Kinds of edits that the epoch before only saw rejected go last."""
    tried = json.loads(memory.meta_skill) if memory.meta_skill else {"accepted": {}, "rejected": {}}
    return sorted(edits, key=lambda e: str(e.op) in tried["rejected"] and str(e.op) not in tried["accepted"])


def _parroted(examples: Sequence[re.Match[str]], rows: Sequence[Row]) -> list[Edit]:
    """Drop an example whose answer was given to two or more other questions, wrongly."""
    said = Counter(normalise(row.said) for row in rows)
    return [
        Edit(Op.DELETE, "", found.group(), f"its answer was given to {said[normalise(found['answer'])]} other tasks")
        for found in examples
        if said[normalise(found["answer"])] >= 2
    ]


def _format_rule(body: str, rows: Sequence[Row]) -> list[Edit]:
    """State the format when half of the failures held the answer among other words."""
    wordy = sum(row.contains for row in rows)
    if FORMAT_RULE in body or wordy * 2 < len(rows):
        return []
    return [Edit(Op.APPEND, FORMAT_RULE, "", f"{wordy} of {len(rows)} failures said more than the answer")]


def _examples(body: str, examples: Sequence[re.Match[str]], rows: Sequence[Row]) -> list[Edit]:
    """Worked examples of failed tasks, answers of a kind not shown yet first; when the room is used up, in exchange
    for the oldest ones."""
    shown = Counter(_shape(found["answer"]) for found in examples)
    room = MOST_EXAMPLES - len(examples)
    edits: list[Edit] = []
    waiting = [row for row in rows if example(row) not in body]
    while waiting:
        row = min(waiting, key=lambda row: shown[_shape(row.answers[0])])
        waiting.remove(row)
        shown[_shape(row.answers[0])] += 1
        reason = f"said {row.said.strip()[:60]!r}"
        if len(edits) < room:
            edits.append(Edit(Op.APPEND, example(row), "", reason))
        elif len(edits) - room < len(examples):
            edits.append(Edit(Op.REPLACE, example(row), examples[len(edits) - room].group(), reason))
    return edits


def _shape(answer: str) -> tuple[int, int]:
    """Words, and letters of a one-word answer up to 3: examples should show every shape."""
    words = answer.split()
    return len(words), min(3, len(answer)) if len(words) == 1 else 0
