"""The core stays small, typed, and on the standard library alone."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from ratchet import core

FOLDER = Path(core.__file__).parent


def code_lines(path: Path) -> int:
    """Lines that hold code: no blank lines, no comments, no docstrings."""
    text = path.read_text(encoding="utf-8")
    prose: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            prose |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate((line.strip() for line in text.splitlines()), start=1)
    return sum(1 for number, line in lines if line and not line.startswith("#") and number not in prose)


def test_core_drive_store_and_ledger_are_at_most_250_lines() -> None:
    assert sum(code_lines(FOLDER / f"{name}.py") for name in ("loop", "checkpoint", "ledger")) <= 250


def test_core_as_a_whole_is_at_most_800_lines() -> None:
    assert sum(map(code_lines, FOLDER.glob("*.py"))) <= 800


def test_core_imports_the_standard_library_and_itself_alone_and_never_pickle_or_environ() -> None:
    for path in FOLDER.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                top = name.split(".")[0]
                assert name.startswith("ratchet.core") or top in sys.stdlib_module_names, f"{path.name} imports {name}"
                assert top not in ("pickle", "shelve", "marshal", "random"), f"{path.name} imports {name}"
            assert not (isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")), path.name


def test_core_functions_are_short() -> None:
    sizes = sorted(
        (node.end_lineno or 0) - node.lineno + 1
        for path in FOLDER.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    )
    assert sizes[len(sizes) // 2] <= 15
    assert sizes[-1] <= 80
