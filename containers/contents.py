"""What is in an image: every file with its hash, read from the image itself and not from what should be in it.

Refuses to know how it got there.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import docker
from docker.models.images import Image

from ratchet.core.fingerprint import digest

MADE_BY_ENGINE = frozenset({".dockerenv", "etc/hostname", "etc/hosts", "etc/mtab", "etc/resolv.conf"})
ENGINE_FOLDERS = ("dev/", "proc/", "sys/")
LABEL = "ratchet.listing"


class Entry(NamedTuple):
    """A file, folder or link: permissions, owner, the time of a file, and the hash of what it holds."""

    path: str
    kind: str
    mode: int
    owner: tuple[int, int]
    time: int
    content: str


class Contents(NamedTuple):
    """What an image holds."""

    files: int
    megabytes: int
    sha256: str
    entries: tuple[Entry, ...]


def contents(client: docker.DockerClient, image: Image) -> Contents:
    """List `image` by exporting a container of it that never starts, and is removed."""
    container = client.containers.create(image, ["none"], network_mode="none", labels={LABEL: "1"})
    try:
        entries = tuple(sorted(_entries(container.export())))
    finally:
        container.remove(v=True, force=True)
    return Contents(
        files=sum(entry.kind == "file" for entry in entries),
        megabytes=round(int(image.attrs["Size"]) / 1e6),
        sha256=digest([list(entry) for entry in entries]),
        entries=entries,
    )


def _entries(stream: Iterable[bytes]) -> Iterator[Entry]:
    with tarfile.open(fileobj=io.BufferedReader(_Pieces(iter(stream)), 2**20), mode="r|") as archive:
        for member in archive:
            name = member.name.removeprefix("./")
            if name in MADE_BY_ENGINE or name.startswith(ENGINE_FOLDERS):
                continue
            owner = (member.uid, member.gid)
            if member.isfile():
                file = archive.extractfile(member)
                assert file is not None
                content = hashlib.file_digest(file, "sha256").hexdigest()  # pyright: ignore[reportArgumentType]
                yield Entry(name, "file", member.mode, owner, int(member.mtime), content)
            else:  # a folder's time is when the engine made it
                kind = "folder" if member.isdir() else "link" if member.issym() else f"type {member.type!r}"
                yield Entry(name, kind, member.mode, owner, 0, member.linkname)


class _Pieces(io.RawIOBase):
    """A stream of byte strings as a file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = piece
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size
