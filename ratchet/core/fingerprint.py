"""Identity: hashes of values, files, folders and code, and the difference between two identities.

Knows bytes, JSON and Python syntax trees; refuses to know which keys matter to whom.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

ABSENT = "(absent)"


class Change(NamedTuple):
    """One dotted key whose value differs; `ABSENT` stands for a side that lacks it."""

    key: str
    old: object
    new: object

    def __str__(self) -> str:
        return f"{self.key} {self.old!r} → {self.new!r}"


def digest(value: object) -> str:
    """sha256 (hex) of a JSON value; the order of keys does not count. Raises ValueError for NaN and infinity."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def file_digest(path: Path) -> str:
    """sha256 (hex) of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def constraints_digest(root: Path = Path()) -> str | None:
    """sha256 (hex) of the project's constraints.txt, which pins every package; None when there is none."""
    return file_digest(path) if (path := root / "constraints.txt").is_file() else None


def tree_digest(path: Path) -> str:
    """sha256 (hex) of a file, or of a folder's relative names and bytes; neither place, order nor time counts."""
    if path.is_file():
        return file_digest(path)
    files = sorted(item for item in path.rglob("*") if item.is_file())
    if not path.is_dir():
        raise FileNotFoundError(path)
    return digest({item.relative_to(path).as_posix(): file_digest(item) for item in files})


def flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one mapping with dotted keys; lists are values."""
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        nested: Mapping[str, Any] = cast("Mapping[str, Any]", inner) if isinstance(inner, Mapping) else {}
        flat |= flatten(nested, f"{prefix}{key}.") if nested else {f"{prefix}{key}": inner}
    return flat


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """The changes from `old` to `new`, by dotted key, sorted."""
    before, after = flatten(old), flatten(new)
    changes = (Change(key, before.get(key, ABSENT), after.get(key, ABSENT)) for key in sorted({*before, *after}))
    return [change for change in changes if digest(change.old) != digest(change.new)]


def import_closure(module_file: Path, root: Path) -> list[Path]:
    """`module_file` and every file under `root` it imports, directly or not, as sorted `root / relative` paths.

    Read from the syntax tree (imports inside functions count, imports by a computed name are not seen).
    """
    found: set[Path] = set()
    todo = [module_file.resolve().relative_to(root.resolve())]
    while todo:
        file = todo.pop()
        if file in found:
            continue
        found.add(file)
        package = file.parent.parts
        names = [".".join([*package, "__init__"]), *_imported(ast.parse((root / file).read_bytes()), package)]
        todo += [hit for name in names for hit in _files_of(name, root)]
    return sorted(root / file for file in found)


def _imported(tree: ast.Module, package: tuple[str, ...]) -> Iterable[str]:
    """Dotted names of all modules `tree` may import; `from x import y` gives `x` and `x.y`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _files_of(name: str, root: Path) -> Iterable[Path]:
    """The files under `root` that importing `name` runs: the packages above it and itself."""
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        path = Path(*parts[:depth])
        yield from (c for c in (path.with_suffix(".py"), path / "__init__.py") if (root / c).is_file())


def code_digest(files: Iterable[Path]) -> str:
    """sha256 (hex) of what `files` compute: comments, formatting, docstrings and the folder they lie in do not count.

    Files that are not Python count by their bytes. The syntax tree depends on the Python version (minor).
    """
    paths = sorted(files)
    base = os.path.commonpath([path.parent for path in paths]) if paths else ""
    trees = {os.path.relpath(path, base): _tree(path) if path.suffix == ".py" else file_digest(path) for path in paths}
    return digest(trees)


def closure_digest(modules: Iterable[Path], root: Path) -> str:
    """`code_digest` of `modules` and of every file under `root` that they import, directly or not."""
    return code_digest({path for module in modules for path in import_closure(module, root)})


def _tree(path: Path) -> str:
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        body: Any = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [line for line in cast("list[ast.stmt]", body) if not _is_text(line)]  # pyright: ignore[reportAttributeAccessIssue]
    return ast.dump(tree)


def _is_text(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)
