"""Phase update: edits applied to a document one after the other, each with its status; protected blocks stay.

Knows text; refuses to know why an edit was made. A search text that does not match is never a silent success.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ratchet.loops.skill.records import Edit, EditStatus, Memory, Op, Optimizer, Usage

BLOCKS = ("slow_update", "appendix")
_MARK = re.compile(r"<!-- (?:begin|end) (?:" + "|".join(BLOCKS) + r") -->")
_BLOCK = re.compile(r"\n*<!-- begin (" + "|".join(BLOCKS) + r") -->\n(.*?)\n?<!-- end \1 -->\n*", re.DOTALL)


class Mode(StrEnum):
    """How selected edits become a candidate."""

    PATCH = "patch"
    REWRITE = "rewrite"


@dataclass(frozen=True)
class Applied:
    """An edit and what became of it."""

    edit: Edit
    status: EditStatus

    def public(self) -> dict[str, Any]:
        """As JSON."""
        return {**self.edit.public(), "status": str(self.status)}


@dataclass(frozen=True)
class Candidate:
    """The document after the edits, and what became of each."""

    text: str
    applied: tuple[Applied, ...]
    usage: Usage = field(default_factory=Usage)


def update(memory: Memory, edits: Sequence[Edit], mode: Mode, optimizer: Optimizer) -> Candidate:
    """The candidate that `edits` make of the document: applied one by one, or as suggestions for one rewriting call."""
    if mode is Mode.PATCH or not edits:
        return Candidate(*apply(memory.skill, edits))
    written = optimizer.rewrite(memory, edits)
    status = tuple(Applied(edit, EditStatus.REWRITTEN) for edit in edits)
    return Candidate(with_body(memory.skill, written.value), status, written.usage)


@dataclass(frozen=True)
class Document:
    """A skill document taken apart: the body that edits may touch, and the protected blocks by name."""

    body: str
    blocks: dict[str, str]

    def text(self) -> str:
        """The whole document; blocks stand at its end, in the order of `BLOCKS`."""
        parts = [self.body.strip("\n")] if self.body.strip("\n") else []
        parts += [f"<!-- begin {name} -->\n{self.blocks[name]}\n<!-- end {name} -->"
                  for name in BLOCKS if self.blocks.get(name)]  # fmt: skip
        return "\n\n".join(parts) + "\n" if parts else ""


def parse(text: str) -> Document:
    """`text` as a Document. A mark without its partner counts as body, where it makes edits that carry it invalid."""
    blocks = {found.group(1): found.group(2) for found in _BLOCK.finditer(text)}
    return Document(_BLOCK.sub("\n\n", text).strip("\n"), blocks)


def with_block(text: str, name: str, content: str) -> str:
    """`text` with the protected block `name` holding `content`; empty content removes the block."""
    document = parse(text)
    return Document(document.body, document.blocks | {name: content.strip("\n")}).text()


def with_body(text: str, body: str) -> str:
    """`text` with another body and the same protected blocks; blocks inside `body` are dropped."""
    return Document(parse(body).body, parse(text).blocks).text()


def shown(text: str) -> str:
    """What the target reads: the document without the marks of its blocks, single blank lines."""
    return re.sub(r"\n{3,}", "\n\n", _MARK.sub("", text)).strip("\n")


def apply(text: str, edits: Sequence[Edit]) -> tuple[str, tuple[Applied, ...]]:
    """The document after `edits`, in their order, and the status of each. `text` is normal (`parse().text()`)."""
    document = parse(text)
    applied: list[Applied] = []
    for edit in edits:
        body, status = _applied(document, edit)
        document = Document(body, document.blocks)
        applied.append(Applied(edit, status))
    return document.text(), tuple(applied)


def _applied(document: Document, edit: Edit) -> tuple[str, EditStatus]:
    body, content = document.body, edit.content.strip("\n")
    if _MARK.search(edit.content) or _MARK.search(edit.target) or not _complete(edit):
        return body, EditStatus.INVALID
    if edit.op is not Op.APPEND and edit.target not in body:
        protected = any(edit.target in block for block in document.blocks.values())
        return body, EditStatus.PROTECTED if protected else EditStatus.NO_MATCH
    if edit.op in (Op.APPEND, Op.INSERT_AFTER) and _stands_in(content, body):
        return body, EditStatus.NO_CHANGE
    changed = _changed(body, edit, content)
    return changed, EditStatus.NO_CHANGE if changed == body else EditStatus.APPLIED


def _complete(edit: Edit) -> bool:
    needs_target = edit.op is not Op.APPEND
    needs_content = edit.op is not Op.DELETE
    return (not needs_target or bool(edit.target.strip())) and (not needs_content or bool(edit.content.strip()))


def _stands_in(content: str, body: str) -> bool:
    return f"\n{content}\n" in f"\n{body}\n"


def _changed(body: str, edit: Edit, content: str) -> str:
    match edit.op:
        case Op.APPEND:
            return f"{body}\n{content}" if body else content
        case Op.INSERT_AFTER:
            head, target, tail = body.partition(edit.target)
            return f"{head}{target}\n{content}{tail if tail.startswith(chr(10)) or not tail else chr(10) + tail}"
        case Op.REPLACE:
            return body.replace(edit.target, edit.content, 1)
        case Op.DELETE:
            return re.sub(r"\n{3,}", "\n\n", body.replace(edit.target, "", 1)).strip("\n")


def summary(applied: Sequence[Applied]) -> dict[str, int]:
    """edit_apply_summary of history.json: every edit is applied, skipped or an error."""
    statuses = [each.status for each in applied]
    errors = statuses.count(EditStatus.INVALID)
    done = statuses.count(EditStatus.APPLIED) + statuses.count(EditStatus.REWRITTEN)
    return {"total": len(statuses), "applied": done, "skipped": len(statuses) - done - errors, "errors": errors}
