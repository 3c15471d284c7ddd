"""Source `parquet`: a folder of parquet files with a column of text. Refuses to know where the files came from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from ratchet.data.documents import check_column, open_parquet, read_texts
from ratchet.data.sources.protocol import Corpus, Document, check_sha256, find_files, read_file
from ratchet.params import Params


class ParquetParams(Params):
    """`prepare.parquet`."""

    folder: str = Field(
        default="corpus", min_length=1, description="folder of the files; relative to the project or absolute"
    )
    glob: str = Field(default="**/*.parquet", min_length=1, description="which files, as a glob below the folder")
    column: str = Field(default="text", min_length=1, description="the column that holds the text, one document a row")
    language: str = Field(default="und", description="BCP 47 tag of the text; und = not said")
    licence: str = Field(default="not stated", description="licence of the text, for the manifest")
    sha256: str | None = Field(default=None, description="pinned sha256 of the corpus; null: recorded, not checked")


class ParquetSource:
    """See the module."""

    def __init__(self, params: ParquetParams) -> None:
        self.params = params

    def open(self) -> Corpus:
        """The files found, each with its column checked, hashed, and checked against the pin."""
        params, folder = self.params, Path(self.params.folder)
        found = find_files(folder, params.glob, "prepare.parquet.folder")
        for _, path in found:
            with open_parquet(path) as file:
                check_column(file, params.column, path)

        def documents() -> Iterator[Document]:
            for _, path in found:
                for text in read_texts(path, params.column):
                    yield Document(text, params.language)

        corpus = Corpus("parquet", params.licence, tuple(read_file(path, name) for name, path in found), documents)
        check_sha256(corpus.sha256, params.sha256, "prepare.parquet.sha256", "the parquet folder")
        return corpus
