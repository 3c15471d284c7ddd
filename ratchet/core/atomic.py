"""Files and folders that appear whole or not at all: temp in the same folder, fsync, rename, fsync of the folder.

Refuses to know what is inside a file.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ratchet.core.errors import InputError

TEMP_MARK = ".ratchet-tmp-"


def fsync_folder(folder: Path) -> None:
    """Make the names inside `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_file(path: Path) -> None:
    """Make the bytes of `path` durable."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def temp_beside(path: Path) -> Path:
    """A hidden sibling of `path` that names its writer, so that `sweep` can tell a stale one."""
    return path.parent / f".{path.name}{TEMP_MARK}{os.getpid()}"


def write_bytes(path: Path, data: bytes) -> None:
    """Replace `path` by `data`, durably; readers see the old bytes or the new ones.

    Raises OSError (a full disk included) with `path` untouched and no temp file left.
    """
    with output_file(path) as temp:
        temp.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """`write_bytes` of `text` in UTF-8."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: object) -> None:
    """`write_text` of `value` as indented JSON; NaN and infinity are refused (ValueError)."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def json_line(value: object, where: object) -> str:
    """`value` as one canonical line of JSON. Raises InputError naming `where` for NaN, infinity and what is no JSON."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise InputError(where, f"cannot be kept as JSON: {error}", "write null or a string instead") from None


def plain(value: object, where: object) -> dict[str, Any]:
    """A copy of the mapping `value` as reading it back gives it (lists for tuples, strings for keys)."""
    return json.loads(json_line(value, where))


@contextmanager
def output_file(path: Path) -> Generator[Path]:
    """Yield a temp path to write; on success it becomes `path`, on an error it is removed and `path` is as before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temp = temp_beside(path)
    try:
        yield temp
        fsync_file(temp)
        temp.replace(path)
    except BaseException:
        temp.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


@contextmanager
def output_folder(path: Path) -> Generator[Path]:
    """Yield an empty temp folder; on success it becomes `path`, replacing what was there; on an error it is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temp = temp_beside(path)
    shutil.rmtree(temp, ignore_errors=True)
    temp.mkdir()
    try:
        yield temp
        publish_folder(temp, path)
    except BaseException:
        shutil.rmtree(temp, ignore_errors=True)
        raise


def publish_folder(temp: Path, path: Path) -> None:
    """Make the finished folder `temp` durable and move it to `path` beside it; what was there is removed."""
    for item in sorted(temp.rglob("*")):
        if item.is_file():
            fsync_file(item)
        else:
            fsync_folder(item)
    fsync_folder(temp)
    if path.exists():
        remove_folder(path)
    temp.replace(path)
    fsync_folder(path.parent)


def remove_folder(path: Path) -> None:
    """Remove the folder `path`; a kill half way leaves a temp for `sweep`, never half a folder under its own name."""
    old = path.parent / f".{path.name}{TEMP_MARK}old-{os.getpid()}"
    path.replace(old)
    shutil.rmtree(old)


def sweep(folder: Path, *, alone: bool = False) -> list[Path]:
    """Remove what dead writers left in `folder` (not below it) and return it. Temps of other living processes stay,
    unless the caller is `alone` (holds the folder's lock)."""
    swept: list[Path] = []
    for item in folder.glob(f".*{TEMP_MARK}*") if folder.is_dir() else ():
        pid = item.name.rpartition(TEMP_MARK)[2].removeprefix("old-")
        if not alone and (not pid.isdecimal() or (int(pid) != os.getpid() and _lives(int(pid)))):
            continue
        if item.is_dir():
            shutil.rmtree(item)
        else:
            item.unlink(missing_ok=True)
        swept.append(item)
    return swept


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
