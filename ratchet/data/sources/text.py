"""Source `text`: files in a folder, one document each or split by a separator. Streams files of any size.

Refuses to guess an encoding: UTF-8 or an error that names the byte.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from ratchet.core.errors import InputError
from ratchet.data.sources.protocol import Corpus, Document, check_sha256, find_files, read_file
from ratchet.params import Params

CHUNK_BYTES = 1 << 22
BYTE_ORDER_MARK = "\ufeff"


class TextParams(Params):
    """`prepare.text`."""

    folder: str = Field(
        default="corpus", min_length=1, description="folder of the files; relative to the project or absolute"
    )
    glob: str = Field(default="**/*.txt", min_length=1, description="which files, as a glob below the folder")
    separator: str | None = Field(
        default=None, min_length=1, description="what stands between documents; null: a file is one"
    )
    language: str = Field(default="und", description="BCP 47 tag of the text; und = not said")
    licence: str = Field(default="not stated", description="licence of the text, for the manifest")
    sha256: str | None = Field(default=None, description="pinned sha256 of the corpus; null: recorded, not checked")


class TextSource:
    """See the module."""

    def __init__(self, params: TextParams) -> None:
        self.params = params

    def open(self) -> Corpus:
        """The files found, hashed, and checked against the pin."""
        params, folder = self.params, Path(self.params.folder)
        found = find_files(folder, params.glob, "prepare.text.folder")

        def documents() -> Iterator[Document]:
            for _, path in found:
                for text in read_texts(path, params.separator):
                    yield Document(text, params.language)

        corpus = Corpus("text", params.licence, tuple(read_file(path, name) for name, path in found), documents)
        check_sha256(corpus.sha256, params.sha256, "prepare.text.sha256", "the text folder")
        return corpus


def read_texts(path: Path, separator: str | None) -> Iterator[str]:
    """The documents of one file, without a byte order mark. Raises InputError naming the first wrong byte."""
    chunks = decode_chunks(path)
    if separator is None:
        yield "".join(chunks)
        return
    tail = ""
    for chunk in chunks:
        *whole, tail = (tail + chunk).split(separator)
        yield from whole
    if tail:
        yield tail


def decode_chunks(path: Path) -> Iterator[str]:
    """The text of `path` in pieces; a character is never cut."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    consumed, first = 0, True
    with path.open("rb") as file:
        while True:
            data = file.read(CHUNK_BYTES)
            pending = len(decoder.getstate()[0])
            try:
                text = decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                byte = consumed - pending + error.start
                what = f"is not UTF-8 at byte {byte} (0x{error.object[error.start]:02x})"
                raise InputError(path, what, "convert it, e.g. `iconv -f LATIN1 -t UTF-8`, or leave it out") from None
            consumed += len(data)
            yield text.removeprefix(BYTE_ORDER_MARK) if first else text
            first = first and not text
            if not data:
                return
