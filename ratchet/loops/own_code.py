"""A user's own code at arm's length: whatever it raises is told in one line, with the place that raised it.

Refuses to know what the code is for.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from ratchet.core.errors import InputError, RatchetError

DO = "mend it and run again"


def load_file(path: Path, name: str, where: str) -> ModuleType:
    """The module in the Python file `path`, known as `name`. Raises InputError when it is not there or does not run.

    `where`: the key that names the file.
    """
    if not path.is_file():
        raise InputError(where, f"{path} cannot be imported: no such file", "name a file that is there")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        with _at_arms_length(where, f"{path} cannot be imported:"):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def load_module(name: str, where: str) -> ModuleType:
    """The module that `import` finds under `name`. Raises InputError when there is none or it does not run."""
    with _at_arms_length(where, f"{name} cannot be imported:"):
        return importlib.import_module(name)


def called(where: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What `function` gives. Raises InputError for whatever it raises; Ratchet's own errors pass as they are."""
    with _at_arms_length(where, "raised"):
        return function(*arguments)


@contextmanager
def _at_arms_length(where: str, what: str) -> Iterator[None]:
    try:
        yield
    except RatchetError:
        raise
    except Exception as error:
        raise InputError(where, f"{what} {_told(error)}", DO) from error


def _told(error: Exception) -> str:
    """Kind, message and place; a SyntaxError names its place itself."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = "" if isinstance(error, SyntaxError) else f" ({frame.filename}:{frame.lineno})"
    return f"{type(error).__name__}: {error}{place}"
