"""The record of a run's calls: one line of JSON for each answer, on the disk before the answer is used.

A request that is in the record costs nothing and needs no network; two threads that ask the same thing pay once.
Refuses to know what is asked, and holds no key: requests have none.
"""

from __future__ import annotations

import json
import os
import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Any

from ratchet.core import atomic
from ratchet.core.errors import InputError, RatchetError
from ratchet.llm.client import Finish, Provider, Reply, Request, Spent, charged, key_of

AROUND = 40
"""Characters shown of two texts from where they begin to differ."""


class Mode(StrEnum):
    """`record`: ask the provider for what is not in the record; `replay`: never ask."""

    RECORD = "record"
    REPLAY = "replay"


class Recorded:
    """`provider` with a record at `path`. Open one for each path: it alone appends."""

    def __init__(self, path: Path, provider: Provider | None = None, mode: Mode = Mode.RECORD) -> None:
        if mode is Mode.RECORD and provider is None:
            raise ValueError("recording needs a provider")
        if mode is Mode.REPLAY and not path.is_file():
            raise InputError(path, "no such record of calls", "give the record of an earlier run, or record one")
        self._path, self._provider, self._mode = path, provider, mode
        self._lock, self._file_lock = threading.Lock(), threading.Lock()
        self._lines, self._good = _read(path)
        self._answers: dict[str, Future[Reply]] = {}
        for line in self._lines:
            if "reply" in line:
                self._answers[line["key"]] = _done(_reply(line))

    @property
    def spent(self) -> Spent:
        """What every call in the record took, failed ones included."""
        with self._file_lock:
            return _sum(self._lines)

    @property
    def answered(self) -> list[dict[str, Any]]:
        """The lines of the record that hold an answer, in their order."""
        with self._file_lock:
            return [line for line in self._lines if "reply" in line]

    def complete(self, request: Request) -> Reply:
        """The recorded answer, else the provider's, recorded first.

        Raises InputError in replay mode for a request that is not there, naming what differs from the nearest.
        """
        key = request.key()
        with self._lock:
            future = self._answers.get(key)
            mine = future is None
            if future is None:
                if self._mode is Mode.REPLAY or self._provider is None:
                    raise self._unseen(request)
                future = self._answers[key] = Future()
        return self._ask(request, key, future) if mine else future.result()

    def _ask(self, request: Request, key: str, future: Future[Reply]) -> Reply:
        """The provider's answer, for those who wait for `future` too. A failure is forgotten: the next call asks."""
        assert self._provider is not None
        try:
            reply = self._provider.complete(request)
            spent = asdict(reply.spent)
            self._append({"key": key, "request": request.fields(), "reply": _fields(reply), "spent": spent})
        except BaseException as error:  # Ctrl-C too: those who wait for `future` would wait for ever
            with self._lock:
                del self._answers[key]
            try:
                self._note(key, error)
            finally:
                future.set_exception(error)
            raise
        future.set_result(reply)
        return reply

    def _note(self, key: str, error: BaseException) -> None:
        """Record what a call without an answer took, so that the next process counts it."""
        if charged(error) != Spent():
            said = str(error) if isinstance(error, RatchetError) else type(error).__name__
            self._append({"key": key, "failed": said, "spent": asdict(charged(error))})

    def _append(self, line: Mapping[str, Any]) -> None:
        """Add a line, durably. The first one written also cuts off what a kill left unfinished."""
        data = json.dumps(line, ensure_ascii=True, allow_nan=False).encode() + b"\n"
        with self._file_lock:
            new = not self._path.exists()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("wb" if new else "r+b") as file:
                file.truncate(self._good)
                file.seek(self._good)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if new:
                atomic.fsync_folder(self._path.parent)
            self._good += len(data)
            self._lines.append(json.loads(data))

    def publish(self, path: Path) -> None:
        """Write the record to `path`, in the order of the keys: the same bytes whatever thread was first."""
        with self._file_lock:
            lines = sorted(json.dumps(line, ensure_ascii=True, allow_nan=False) for line in self._lines)
        atomic.write_text(path, "".join(f"{line}\n" for line in lines))

    def _unseen(self, request: Request) -> InputError:
        known = [line["request"] for line in self._lines if "request" in line]
        what = _difference(request.fields(), known)
        return InputError(self._path, f"holds no answer to this request: {what}", "record the run anew, with a key")


def spent_in(path: Path) -> Spent:
    """What every call in the record at `path` took; nothing when there is none yet. Raises InputError for damage."""
    return _sum(_read(path)[0])


def _sum(lines: Iterable[Mapping[str, Any]]) -> Spent:
    return sum((Spent(**line["spent"]) for line in lines), Spent())


def _read(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The record's lines, and the bytes that they take. A last line without its end is left out; damage is an error."""
    data = path.read_bytes() if path.exists() else b""
    good = data.rfind(b"\n") + 1
    lines = [_line(text, path, number) for number, text in enumerate(data[:good].split(b"\n")[:-1], 1)]
    return lines, good


def _line(text: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        line: Any = json.loads(text)
        Spent(**line["spent"])
        if "failed" in line or (_reply(line) and key_of(line["request"]) == line["key"]):
            return line
    except (ValueError, TypeError, KeyError):
        pass
    what = f"is no line of a record of calls: {text[:60].decode(errors='replace')!r}"
    raise InputError(f"{path}:{number}", what, "restore the file, or remove that line and pay for its call again")


def _fields(reply: Reply) -> dict[str, Any]:
    return {
        "text": reply.text,
        "finish": str(reply.finish),
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
    }


def _reply(line: Mapping[str, Any]) -> Reply:
    fields = line["reply"]
    return Reply(**(fields | {"finish": Finish(fields["finish"]), "spent": Spent(**line["spent"])}))


def _done(reply: Reply) -> Future[Reply]:
    future: Future[Reply] = Future()
    future.set_result(reply)
    return future


def _difference(asked: Mapping[str, Any], known: list[dict[str, Any]]) -> str:
    """What tells `asked` from the nearest recorded request: fewest other fields, then the longest same start."""
    if not known:
        return "the record is empty"
    nearest = min(known, key=lambda other: (len(_other_fields(asked, other)), -_common(_text(asked), _text(other))))
    return "the nearest differs in " + ", ".join(
        f"{name} ({_shown(asked[name], nearest.get(name))})" for name in _other_fields(asked, nearest)
    )


def _other_fields(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return [name for name in one if one[name] != other.get(name)]


def _text(fields: Mapping[str, Any]) -> str:
    messages = fields.get("messages") or []
    return fields.get("prompt") or "\n".join(f"{message['role']}: {message['content']}" for message in messages)


def _common(one: str, other: str) -> int:
    """Length of the text with which both begin."""
    lengths = range(1, min(len(one), len(other)) + 1)
    return bisect_left(lengths, True, key=lambda length: one[:length] != other[:length])


def _shown(asked: Any, recorded: Any) -> str:
    if not isinstance(asked, list | str):
        return f"{asked!r}, recorded {recorded!r}"
    texts = [
        _text({"messages": value}) if isinstance(value, list) and value and isinstance(value[0], dict) else str(value)
        for value in (asked, recorded)
    ]
    start = _common(*texts)
    shown = [repr(text[start : start + AROUND]) for text in texts]
    return f"from character {start}: {shown[0]}, recorded {shown[1]}"
