"""What a callable or a task computes, as a hash: its syntax, what it refers to, the values that it carries.

A comment, a line's place and the rest of the file do not count, so a script may change its number of epochs and go on.
Refuses to know what the code is for.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import sys
import sysconfig
import textwrap
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ratchet.core.fingerprint import digest

INSTALLED = tuple(str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "purelib", "platlib"))


def source_digest(value: object) -> str:
    """sha256 (hex) of what `value` computes: a function, an object with methods, a mapping of them, plain data."""
    return digest(_described(value, {}))


Seen = dict[int, tuple[int, object]]
"""By id: which of the objects it is that were met, and the object, held lest another get its id."""


def _described(value: Any, seen: Seen) -> Any:
    """`value` as JSON. What was `seen` before is named by the place where it was first: code may be recursive."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    if id(value) in seen:
        return f"(seen {seen[id(value)][0]})"
    seen[id(value)] = len(seen), value
    if isinstance(value, Mapping):
        return [[_described(key, seen), _described(inner, seen)] for key, inner in value.items()]
    if isinstance(value, list | tuple):
        return [_described(inner, seen) for inner in value]
    if isinstance(value, set | frozenset):
        return sorted(_alone(inner, seen) for inner in value)
    return _described_code(value, seen)


def _alone(value: Any, seen: Seen) -> str:
    """The hash of one element of a set: what its neighbours are made of is not `seen` yet, for a set has no order."""
    before = len(seen)
    found = digest(_described(value, seen))
    while len(seen) > before:
        seen.popitem()
    return found


def _described_code(value: Any, seen: Seen) -> Any:
    if isinstance(value, functools.partial):
        return ["partial", *(_described(part, seen) for part in (value.func, value.args, value.keywords))]
    if isinstance(value, types.MethodType):
        return ["method", _described(value.__func__, seen), _described(value.__self__, seen)]
    if isinstance(value, staticmethod | classmethod):
        return _described(value.__func__, seen)
    if isinstance(value, property):
        return _described([value.fget, value.fset], seen)
    if isinstance(value, types.FunctionType):
        return _function(value, seen)
    if isinstance(value, types.ModuleType):
        return _module(value)
    if isinstance(value, type):
        return _class(value, seen)
    return _instance(value, seen)


def _function(function: types.FunctionType, seen: Seen) -> Any:
    function = inspect.unwrap(function) if hasattr(function, "__wrapped__") else function
    if _installed(getattr(function.__code__, "co_filename", "")):
        return f"{function.__module__}.{function.__qualname__}"
    cells = [_cell(cell) for cell in function.__closure__ or ()]
    names = sorted(_names(function.__code__))
    used = {name: function.__globals__[name] for name in names if name in function.__globals__}
    return [
        _syntax(function),
        _described([function.__defaults__, function.__kwdefaults__, cells], seen),
        _described(used, seen),
    ]


def _cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "(empty)"


def _names(code: types.CodeType) -> set[str]:
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return set(code.co_names).union(*(_names(each) for each in inner))


def _syntax(value: Any) -> str:
    """The syntax tree of a function without its docstring; its bytecode where the source cannot be had."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(value)))
    except (OSError, TypeError, SyntaxError):
        return _bytecode(value.__code__)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and ast.get_docstring(node):
            node.body = node.body[1:]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()


def _bytecode(code: types.CodeType) -> str:
    parts = [_bytecode(each) if isinstance(each, types.CodeType) else repr(each) for each in code.co_consts]
    return hashlib.sha256(code.co_code + repr([parts, code.co_names]).encode()).hexdigest()


def _module(module: types.ModuleType) -> str:
    """A module of mine by the bytes of its file, anybody else's by its name: constraints.txt holds its version."""
    file = getattr(module, "__file__", None)
    if file is None or _installed(file) or not Path(file).is_file():
        return module.__name__
    return f"{module.__name__} {hashlib.sha256(Path(file).read_bytes()).hexdigest()}"


def _class(cls: type, seen: Seen) -> Any:
    module = sys.modules.get(cls.__module__)
    if cls.__module__ == "builtins" or (module is not None and _installed(getattr(module, "__file__", "") or "")):
        return f"{cls.__module__}.{cls.__qualname__}"
    skipped = ("__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__firstlineno__")
    own = {name: inner for name, inner in vars(cls).items() if name not in skipped and not name.startswith("_abc_")}
    return [cls.__qualname__, [_described(base, seen) for base in cls.__bases__], _described(own, seen)]


def _instance(value: Any, seen: Seen) -> Any:
    """An object by its class and attributes; arrays by their values; what has neither, by its type alone."""
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        return [str(value.dtype), _described(value.tolist(), seen)]
    if isinstance(value, Path):
        return str(value)
    return [_described(type(value), seen), _described(getattr(value, "__dict__", {}), seen)]


def _installed(file: str) -> bool:
    """Whether `file` belongs to Python or to an installed package."""
    return not file or file.startswith("<frozen") or str(Path(file).resolve()).startswith(INSTALLED)
