"""What a candidate may be, read from its text before anything of it runs: only the arena, nothing of the sealed code.

Compares sources by their syntax trees, so a comment is no change and a repeat is recognised. Refuses to run a source
and to know how it scores. A guard against the cheap and the careless: what holds is the sandbox and the judge.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, cast

from ratchet.tables.results import one_line

SEALED = ("ratchet", "steps", "flows")
ENTRY = "ratchet.train.standalone"
"""The one sealed module that an arena names, in its `if __name__ == "__main__":`, which no trainer runs."""

DYNAMIC = ("importlib", "imp", "runpy", "pkgutil")
EVALUATING = ("__import__", "eval", "exec")
MAX_BYTES = 1_000_000
MAX_DEPTH = 150
"""Levels of a syntax tree: an honest arena has some 20, and Python writes and compares trees by recursion."""
SAID_LINES, SAID_LETTERS = 30, 400


def refusal(source: str) -> str | None:
    """Why `source` is not tried at all, or None when it is."""
    if len(source.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        return f"refused: the source is longer than {MAX_BYTES:,} bytes"
    try:
        tree = ast.parse(source)
        source.encode("utf-8")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"refused: no Python: {one_line(str(error))}"
    if _is_deep(tree):
        return f"refused: nested deeper than {MAX_DEPTH}"
    return next((f"refused: line {line} {what}" for line, what in _forbidden(tree)), None)


def _is_deep(tree: ast.Module) -> bool:
    level: list[ast.AST] = [tree]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    return bool(level)


def _forbidden(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in _without_entry(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name in _modules(node):
                top = name.partition(".")[0]
                if top in SEALED:
                    yield node.lineno, f"imports {name}, which is sealed"
                if name == "sys.modules":
                    yield node.lineno, "imports sys.modules"
                if top in DYNAMIC:
                    yield node.lineno, f"imports {name}, which loads modules by computed names"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in EVALUATING:
            yield node.lineno, f"calls {node.func.id}()"
        elif isinstance(node, ast.Attribute) and node.attr == "modules" and _is_name(node.value, "sys"):
            yield node.lineno, "reads sys.modules"


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = "." * node.level + (node.module or "")
    return [base, *(f"{base}.{alias.name}" for alias in node.names if base == "sys" and alias.name == "modules")]


def _without_entry(tree: ast.Module) -> Iterator[ast.AST]:
    """Every node but the import of `ENTRY` under `if __name__ == "__main__":`, at the top."""
    for top in tree.body:
        is_entry = isinstance(top, ast.If) and ast.unparse(top.test) == "__name__ == '__main__'"
        for node in ast.walk(top):
            if not (is_entry and isinstance(node, ast.ImportFrom) and node.module == ENTRY):
                yield node


def arena_sha(source: str) -> str:
    """Hash (16 hex) of what `source` computes: comments, formatting and docstrings do not count. It must parse."""
    return hashlib.sha256(ast.dump(_bare(source)).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def code_lines(source: str) -> int:
    """Lines of `source` as `ast.unparse` writes it, without docstrings: its length for the gate."""
    return len(ast.unparse(_bare(source)).splitlines())


def _bare(source: str) -> ast.Module:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body: Any = getattr(node, "body", None)
        if isinstance(body, list):
            kept = [line for line in cast("list[ast.stmt]", body) if not _is_text(line)]
            node.body = kept or [ast.Pass()]  # pyright: ignore[reportAttributeAccessIssue]
    return tree


def _is_text(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)


def diff_lines(old: str, new: str) -> int:
    """Lines added plus lines removed from `old` to `new`."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm="")
    return sum(line[:1] in "+-" and not line.startswith(("+++ ", "--- ")) for line in lines)


def untrusted(lines: Iterable[str]) -> tuple[str, ...]:
    """The last lines that a candidate printed, without what could steer a terminal or a reader."""
    return tuple(one_line(line)[:SAID_LETTERS] for line in list(lines)[-SAID_LINES:])
