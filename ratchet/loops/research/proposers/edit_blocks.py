"""Search/replace blocks: parsed from a model's reply and applied to the arena exactly, or refused in words it can use.

    <<<<<<< SEARCH
    lines that are in the file, once
    =======
    the lines that take their place
    >>>>>>> REPLACE

Refuses to guess: a text that is not there, or there twice, is no edit. Knows lines, not what they mean.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

ARENA = "arena/train.py"
_NAMES = (ARENA, "train.py")
_SEARCH = re.compile(r"<{5,9} ?SEARCH\b[ :]*(.*)")
_DIVIDER = re.compile(r"={5,9}")
_REPLACE = re.compile(r">{5,9} ?REPLACE\b.*")
_DESCRIPTION = re.compile(r"\W*description\W*:\W*(.*)", re.IGNORECASE)
_PATH = re.compile(r"[^\s`*]*\.(?:py|md|toml|ya?ml|txt|json|sh|cfg|ini|lock|tsv)", re.IGNORECASE)


class EditError(ValueError):
    """Why a reply is no edit of the arena, said to whoever wrote it."""


@dataclass(frozen=True)
class Block:
    """One replacement of whole lines."""

    search: tuple[str, ...]
    replace: tuple[str, ...]


@dataclass(frozen=True)
class Edit:
    """A reply: one line that says what it tries, and its blocks in order."""

    description: str
    blocks: tuple[Block, ...]


def parse(reply: str) -> Edit:
    """Description and blocks of `reply`. Raises EditError: no block, a torn one, a file other than the arena."""
    lines = reply.replace("\r\n", "\n").split("\n")
    blocks: list[Block] = []
    prose: list[str] = []
    place = 0
    while place < len(lines):
        opened = _SEARCH.fullmatch(lines[place].rstrip())
        if opened:
            _refuse_other_file(opened.group(1), prose)
            block, place = _block(lines, place + 1, len(blocks) + 1)
            blocks.append(block)
        else:
            prose.append(lines[place])
            place += 1
    if not blocks:
        raise EditError("the reply has no block <<<<<<< SEARCH … ======= … >>>>>>> REPLACE")
    return Edit(_description(prose), tuple(blocks))


def _block(lines: Sequence[str], start: int, number: int) -> tuple[Block, int]:
    """The block whose first line of SEARCH is `start`, and the line after it."""
    divider: int | None = None
    for place in range(start, len(lines)):
        line = lines[place].rstrip()
        if _SEARCH.fullmatch(line):
            break
        if _DIVIDER.fullmatch(line):
            if divider is not None:
                raise EditError(f"block {number} has two lines =======")
            divider = place
        elif _REPLACE.fullmatch(line):
            if divider is None:
                raise EditError(f"block {number} has no line =======")
            return Block(tuple(lines[start:divider]), tuple(lines[divider + 1 : place])), place + 1
    raise EditError(f"block {number} has no end >>>>>>> REPLACE")


def _refuse_other_file(behind: str, prose: Sequence[str]) -> None:
    """A block may be headed by a path, behind SEARCH or on the line before; it must be the arena's."""
    before = next((line for line in reversed(prose) if line.strip() and not line.lstrip().startswith("```")), "")
    headers = [behind.strip(), re.sub(r"^\W*file\W*:", "", before, flags=re.IGNORECASE).strip(" \t#*`:")]
    for header in headers:
        name = header.strip("`*").removeprefix("./").replace("\\", "/")
        if _PATH.fullmatch(name) and name not in _NAMES:
            raise EditError(f"it edits {name}; only {ARENA} may be edited")


def _description(prose: Sequence[str]) -> str:
    said = [line.strip() for line in prose if line.strip() and not line.lstrip().startswith("```")]
    named = [found.group(1) for line in said if (found := _DESCRIPTION.fullmatch(line))]
    return next((line for line in [*named, *said] if line), "")


def apply(source: str, blocks: Sequence[Block]) -> str:
    """`source` with the blocks replaced, one after the other. Raises EditError when one is not there exactly once."""
    lines = source.split("\n")
    for number, block in enumerate(blocks, 1):
        start = _only_place(lines, block, number)
        lines[start : start + len(block.search)] = block.replace
    return "\n".join(lines)


def _only_place(lines: Sequence[str], block: Block, number: int) -> int:
    """Where the block's lines are. Comparison is exact, to the last space."""
    search = list(block.search)
    if not any(line.strip() for line in search):
        raise EditError(f"block {number} searches for nothing: give some lines of the file")
    places = [place for place in range(len(lines) - len(search) + 1) if lines[place : place + len(search)] == search]
    if len(places) == 1:
        return places[0]
    if places:
        where = ", ".join(str(place + 1) for place in places[:5])
        raise EditError(f"block {number} is ambiguous: its SEARCH is at lines {where}; add lines around it")
    raise EditError(f"block {number} does not apply: its SEARCH is not in the file{_hint(lines, search)}")


def _hint(lines: Sequence[str], search: Sequence[str]) -> str:
    """What is nearly there."""
    bare = [line.strip() for line in search]
    for place in range(len(lines) - len(search) + 1):
        if [line.strip() for line in lines[place : place + len(search)]] == bare:
            return f", but at line {place + 1} with other spaces"
    missing = next((line for line in search if line.strip() and line not in lines), search[0])
    near = difflib.get_close_matches(missing, lines, n=1, cutoff=0.6)
    return f"; {missing.strip()!r} is not, {near[0].strip()!r} is" if near else f"; {missing.strip()!r} is not"


def check(before: str, after: str) -> None:
    """Raise EditError when `after` is no Python, or computes just what `before` does."""
    try:
        same = ast.dump(ast.parse(after)) == ast.dump(ast.parse(before))
        after.encode()
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        text = (getattr(error, "text", None) or "").strip()
        where = f" at line {line} ({text!r})" if line else ""
        raise EditError(f"the edited file is no Python: {getattr(error, 'msg', None) or error}{where}") from None
    if same:
        raise EditError("the edit changes nothing that runs")
