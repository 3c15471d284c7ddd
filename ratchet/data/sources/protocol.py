"""What every source of text gives: an identified corpus, and its documents one after the other.

Refuses to know splits, shards and file formats of the outputs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from ratchet.core.errors import InputError
from ratchet.core.fingerprint import file_digest

Pool = Literal["hashed", "train", "held_out"]
"""Which splits a document may go to: any, by its hash; train alone; validation or test, by its hash."""


class Document(NamedTuple):
    """One document. `text` is None where the corpus has a record without text; `language` is a BCP 47 tag."""

    text: str | None
    language: str
    pool: Pool = "hashed"


class CorpusFile(NamedTuple):
    """One file of a corpus: `name` relative to the corpus (never a path of this machine), `size` in bytes."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Corpus:
    """A corpus that is there, whole and identified. `documents` may be called once per pass and streams."""

    name: str
    licence: str
    files: tuple[CorpusFile, ...]
    documents: Callable[[], Iterator[Document]]
    origin: str = ""
    sha256: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sha256", corpus_sha256(self.files))


class Source(Protocol):
    """One way to get text."""

    def open(self) -> Corpus:
        """Find or fetch the corpus and check it against its pins; read no document yet.

        Raises InputError for what a person can mend, InfrastructureError when the network fails.
        """
        ...


def corpus_sha256(files: Iterable[CorpusFile]) -> str:
    """One file: the sha256 of its bytes. Several: the sha256 of the lines `sha256  name`, sorted by name."""
    by_name = sorted(files, key=lambda file: file.name)
    if len(by_name) == 1:
        return by_name[0].sha256
    return hashlib.sha256("".join(f"{file.sha256}  {file.name}\n" for file in by_name).encode()).hexdigest()


def read_file(path: Path, name: str) -> CorpusFile:
    """Size and sha256 of the file at `path`, called `name`. Streams. Raises InputError when it cannot be read."""
    try:
        return CorpusFile(name, path.stat().st_size, file_digest(path))
    except OSError as error:
        do = "give yourself the right to read it, or leave it out of the folder"
        raise InputError(path, f"cannot be read: {error.strerror}", do) from None


def find_files(folder: Path, pattern: str, key: str) -> list[tuple[str, Path]]:
    """(name, path) of the files in `folder` that match the glob `pattern`, sorted by name, hidden ones left out.

    `key`: the params key that named the folder, for the message. Raises InputError when there is none, and for a link
    that leads nowhere or a pipe: text that is missing must not go unsaid.
    """
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "does not exist"
        raise InputError(key, f"{str(folder)!r} {what}", f"set {key} to a folder")
    named = ((path.relative_to(folder), path) for path in folder.glob(pattern) if not path.is_dir())
    found = sorted((name.as_posix(), path) for name, path in named if not any(p.startswith(".") for p in name.parts))
    for _, path in found:
        _check_regular(path)
    if not found:
        raise InputError(key, f"no file in {str(folder)!r} matches {pattern!r}", "add files or change the glob")
    return found


def _check_regular(path: Path) -> None:
    if path.is_file():
        return
    broken = path.is_symlink()
    what = f"is a link to a file that is not there ({path.readlink()})" if broken else "is no regular file"
    raise InputError(path, what, "put the file there, or take the name out of the folder")


def check_sha256(actual: str, pinned: str | None, key: str, what: str) -> None:
    """Raise InputError when a pin is there and `actual` differs from it. `key`: the params key that holds the pin."""
    if pinned is not None and actual != pinned.lower():
        do = f"restore what was pinned, or set {key} to the new sha256 to accept the change"
        raise InputError(key, f"{what} has sha256 {actual}, pinned is {pinned}", do)
