"""Agent and optimizer as models behind a provider. Knows how each call is worded; refuses to know endpoints and keys.

The wording is part of a run's identity: this file's code is hashed into it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from ratchet.llm.client import Message, Provider, Reply
from ratchet.llm.client import Role as Speaker
from ratchet.loops.skill.parallel import in_order
from ratchet.loops.skill.parameters import Role
from ratchet.loops.skill.readable import Readable, Reader
from ratchet.loops.skill.records import (
    Answer,
    Asked,
    Edit,
    Kind,
    Memory,
    Pair,
    Patch,
    Row,
    Task,
    Usage,
)
from ratchet.loops.skill.replies import edits_in, ranking_of, text_under
from ratchet.loops.skill.update import shown

T = TypeVar("T")

EDITS_FORMAT = """Answer with one JSON object and nothing else:
{"edits": [{"op": "...", "target": "...", "content": "...", "reason": "..."}]}
`op` is one of append, insert_after, replace, delete. `target` is copied exactly from the document, letter by letter
(not for append). `content` is what is put there (not for delete). The first exact match counts. An empty list is
allowed. Leave blocks between <!-- begin … --> and <!-- end … --> alone."""

ANALYST = """You improve a document of instructions that another, frozen model reads before each task.
You see how it did on a few tasks and propose small edits to the document: general rules, formats, procedures, short
worked examples. Never copy answers that only fit one task unless they teach a format."""

MERGER = """You merge several lists of proposed edits to one document into one list: join duplicates, resolve
contradictions (edits learnt from failures count more than edits learnt from successes), keep what is general. Give
each edit its `support`: how many of the lists proposed it."""


class ModelTarget:
    """The frozen agent behind a provider: the document is its system message, the question the user's."""

    def __init__(self, provider: Provider, role: Role, workers: int) -> None:
        self._provider, self._role, self._workers = provider, role, workers

    def answer(self, skill: str, tasks: Sequence[Task], sample: int) -> list[Answer]:
        """One answer per task, in their order. Raises CallError."""
        return in_order(lambda task: self._answer(skill, task, sample), tasks, self._workers)

    def _answer(self, skill: str, task: Task, sample: int) -> Answer:
        document = shown(skill)
        system = (Message(Speaker.SYSTEM, document),) if document else ()
        request = self._role.request(*system, Message(Speaker.USER, task.question), seed=self._role.seed, sample=sample)
        reply = self._provider.complete(request)
        return Answer(reply.text, usage_of(reply))


class ModelOptimizer:
    """The optimizer behind a provider. `readable` is the part of the provider that refuses what cannot be read."""

    def __init__(self, provider: Provider, readable: Readable, role: Role) -> None:
        self._provider, self._readable, self._role = provider, readable, role

    def reflect(self, memory: Memory, kind: Kind, rows: Sequence[Row]) -> Asked[Patch]:
        """The edits that one minibatch suggests."""
        seen = "wrong" if kind is Kind.FAILURE else "right"
        parts = [
            _document(memory.skill),
            f"The model got these tasks {seen}:\n{_json([_row(row) for row in rows])}",
            _rejected(memory),
            f"Lessons of the last epoch:\n{memory.meta_skill}" if memory.meta_skill else "",
            f"Propose at most {memory.edit_budget} edits. {EDITS_FORMAT}",
        ]
        asked = self._ask(ANALYST, parts, edits_in)
        return Asked(Patch(kind, asked.value), asked.usage)

    def merge(self, memory: Memory, patches: Sequence[Patch]) -> Asked[Patch]:
        """One patch from several."""
        lists = [{"learnt_from": str(patch.kind), "edits": [_edit(e) for e in patch.edits]} for patch in patches]
        parts = [_document(memory.skill), f"The lists:\n{_json(lists)}", f'{EDITS_FORMAT} Add "support" to each edit.']
        asked = self._ask(MERGER, parts, edits_in)
        return Asked(Patch(patches[0].kind, asked.value), asked.usage)

    def rank(self, memory: Memory, edits: Sequence[Edit]) -> Asked[list[int]]:
        """The places of the best edits, best first."""
        numbered = [{"place": place, **_edit(edit)} for place, edit in enumerate(edits)]
        wanted = (
            f"Only {memory.edit_budget} of these edits may be made. Name the places of the {memory.edit_budget} that "
            'help most, best first. Answer with one JSON object and nothing else: {"ranking": [places]}'
        )
        parts = [_document(memory.skill), f"The edits:\n{_json(numbered)}", wanted]
        return self._ask(ANALYST, parts, ranking_of(len(edits), memory.edit_budget))

    def rewrite(self, memory: Memory, edits: Sequence[Edit]) -> Asked[str]:
        """The document written anew."""
        wanted = (
            "Write the whole document anew with these suggestions worked in and nothing else changed. "
            'Answer with one JSON object and nothing else: {"document": "..."}'
        )
        parts = [_document(memory.skill), f"The suggestions:\n{_json([_edit(edit) for edit in edits])}", wanted]
        return self._ask(ANALYST, parts, text_under("document"))

    def guide(self, memory: Memory, previous: str, pairs: Sequence[Pair]) -> Asked[str]:
        """Guidance from what an epoch changed."""
        compared = [{"before": _row(pair.before), "after": _row(pair.after)} for pair in pairs]
        wanted = (
            "Say in a few lines what the document must keep and what it must avoid, so that nothing that worked before "
            'is lost. Answer with one JSON object and nothing else: {"guidance": "..."}'
        )
        parts = [
            f"The document an epoch ago:\n{_json(previous)}",
            _document(memory.skill),
            f"The same tasks under both:\n{_json(compared)}",
            wanted,
        ]
        return self._ask(ANALYST, parts, text_under("guidance"))

    def remember(self, memory: Memory, steps: Sequence[Mapping[str, Any]]) -> Asked[str]:
        """Lessons for itself."""
        wanted = (
            "Say in a few lines, for yourself, which kinds of edits helped, which were turned down, and what to try "
            'next. Answer with one JSON object and nothing else: {"lessons": "..."}'
        )
        return self._ask(
            ANALYST, [_document(memory.skill), f"The steps of the last epoch:\n{_json(list(steps))}", wanted],
            text_under("lessons"),
        )  # fmt: skip

    def _ask(self, system: str, parts: Sequence[str], reader: Reader[T]) -> Asked[T]:
        text = "\n\n".join(filter(None, parts))
        request = self._role.request(Message(Speaker.SYSTEM, system), Message(Speaker.USER, text), seed=self._role.seed)
        self._readable.expect(request, reader)
        reply = self._provider.complete(request)
        return Asked(reader(reply.text), usage_of(reply))


def usage_of(reply: Reply) -> Usage:
    """What `reply` took. Attempts that came to nothing but were paid for count as its completion."""
    prompt = reply.prompt_tokens or 0
    spent = max(reply.spent.tokens, prompt + (reply.completion_tokens or 0))
    return Usage(max(1, reply.spent.calls), prompt, spent - prompt, reply.spent.money)


def _document(skill: str) -> str:
    return f"The document, as a JSON string:\n{_json(skill)}"


def _row(row: Row) -> dict[str, Any]:
    return {"question": row.question, "said": row.said, "answers": list(row.answers), "why_wrong": row.fail_reason}


def _edit(edit: Edit) -> dict[str, Any]:
    return {"op": str(edit.op), "target": edit.target, "content": edit.content, "reason": edit.reason}


def _rejected(memory: Memory) -> str:
    if not memory.rejected:
        return ""
    tried = [{**_edit(each.edit), "changed_the_score_by": round(each.delta, 4)} for each in memory.rejected]
    return f"These edits were tried in this epoch and turned down; do not propose them again:\n{_json(tried)}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=None)
