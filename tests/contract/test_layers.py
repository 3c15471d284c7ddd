"""Imports point down only; the core needs nothing but Python; one module alone reads the environment."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

LAYERS: tuple[tuple[str, ...], ...] = (
    ("ratchet.core",),
    ("ratchet.data", "ratchet.tables", "ratchet.stage", "ratchet.params", "ratchet.settings", "ratchet.remotes"),
    ("ratchet.train", "ratchet.llm", "ratchet.sandbox"),
    ("ratchet.loops", "ratchet.report"),
    ("steps",),
    (
        "flows",
        "ratchet.cli",
        "ratchet.cli_options",
        "ratchet.cli_outputs",
        "ratchet.commands",
        "ratchet.copies",
        "ratchet.dag",
        "ratchet.contract",
    ),
)
"""Lowest first; modules of one layer may import each other."""

FILES = sorted(path for folder in ("ratchet", "steps", "flows") for path in (ROOT / folder).rglob("*.py"))


def module_of(path: Path, root: Path = ROOT) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def rank(module: str) -> int | None:
    """The layer of a module; None for one outside the project, and for the package `ratchet` itself."""
    for number, names in enumerate(LAYERS):
        if any(module == name or module.startswith(f"{name}.") for name in names):
            return number
    return None


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative import"
            base = node.module or ""
            yield node.lineno, base
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def upward(module: str, text: str) -> list[str]:
    """The imports of a module that point above its layer, as `line: name`."""
    own = rank(module)
    assert own is not None, f"{module} is in no layer: add it to LAYERS"
    return [f"{line}: {name}" for line, name in imported(ast.parse(text)) if (rank(name) or 0) > own]


def environment_uses(text: str) -> list[int]:
    """Lines that read the environment."""
    names = {"environ", "getenv", "environb", "putenv", "unsetenv"}
    return [
        node.lineno for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute) and node.attr in names
    ] + [
        node.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and node.module == "os" and names & {a.name for a in node.names}
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_module_imports_point_down(path: Path) -> None:
    if module_of(path) != "ratchet":
        assert not upward(module_of(path), path.read_text(encoding="utf-8"))


def test_core_imports_the_standard_library_alone() -> None:
    for path in (ROOT / "ratchet/core").rglob("*.py"):
        for line, name in imported(ast.parse(path.read_text(encoding="utf-8"))):
            top = name.partition(".")[0]
            assert top in sys.stdlib_module_names or name.startswith("ratchet.core"), f"{path}:{line}: {name}"


def test_settings_alone_reads_the_environment() -> None:
    readers = [path for path in FILES if environment_uses(path.read_text(encoding="utf-8"))]
    assert [path.relative_to(ROOT).as_posix() for path in readers] == ["ratchet/settings.py"]


def test_arena_imports_torch_and_the_standard_library_alone() -> None:
    tree = ast.parse((ROOT / "arena/train.py").read_text(encoding="utf-8"))
    for node in tree.body:  # what only `if __name__ == "__main__"` needs is not at the top
        if isinstance(node, ast.Import | ast.ImportFrom):
            for _, name in imported(ast.Module([node], [])):
                assert name.partition(".")[0] in {*sys.stdlib_module_names, "torch"}


@pytest.mark.parametrize(
    ("module", "text", "wrong"),
    [
        ("ratchet.core.x", "from ratchet.settings import settings", 2),
        ("ratchet.data.x", "from ratchet import train", 1),
        ("ratchet.data.x", "def f():\n    import ratchet.train.judge", 1),
        ("steps.x", "import ratchet.cli", 1),
        ("steps.x", "from ratchet.report import plots\nimport torch", 0),
    ],
)
def test_upward_sees_each_kind_of_import(module: str, text: str, wrong: int) -> None:
    assert len(upward(module, text)) == wrong


@pytest.mark.parametrize("text", ["import os\nos.environ['A']", "import os\nos.getenv('A')", "from os import environ"])
def test_environment_uses_sees_each_way(text: str) -> None:
    assert environment_uses(text)
