"""Documents on disk: a folder of parquet shards `shard-00000.parquet`, … with one string column `text`.

Writes the same bytes for the same texts and reads one row group at a time, so that memory is bounded by a row group,
never by the corpus. Refuses to know where a text came from or which split it belongs to.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.core.errors import InputError

COLUMN = "text"
SCHEMA = pa.schema([pa.field(COLUMN, pa.string(), nullable=False)])
ROW_GROUP_DOCUMENTS = 1000
SHARD_DOCUMENTS = 10_000
READ_BATCH = 256


class ShardWriter:
    """Appends texts to numbered shards in `folder`, which exists. Use as a context manager; not atomic by itself.

    `shard_documents`: documents per shard; the last one may hold fewer. `shards` counts the shards begun.
    """

    def __init__(self, folder: Path, *, shard_documents: int = SHARD_DOCUMENTS) -> None:
        self.folder, self.shard_documents = folder, shard_documents
        self.shards = 0
        self._in_shard = 0
        self._buffer: list[str] = []
        self._writer: pq.ParquetWriter | None = None

    def add(self, text: str) -> None:
        """Append one document. Raises OSError when the disk is full."""
        self._buffer.append(text)
        if len(self._buffer) + self._in_shard >= self.shard_documents:
            self._flush()
            self._end_shard()
        elif len(self._buffer) >= ROW_GROUP_DOCUMENTS:
            self._flush()

    def close(self) -> None:
        """Write what is buffered and finish the last shard."""
        if self._buffer:
            self._flush()
        self._end_shard()

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._abandon()

    def _flush(self) -> None:
        if self._writer is None:
            self._writer = _open_writer(self.folder / f"shard-{self.shards:05d}.parquet")
            self.shards += 1
        self._writer.write_table(pa.table({COLUMN: self._buffer}, schema=SCHEMA), row_group_size=ROW_GROUP_DOCUMENTS)
        self._in_shard += len(self._buffer)
        self._buffer = []

    def _end_shard(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer, self._in_shard = None, 0

    def _abandon(self) -> None:
        """Let go of the open file while another error is on its way; the folder is thrown away by its owner."""
        try:
            self._end_shard()
        except OSError:
            self._writer = None


def _open_writer(path: Path) -> pq.ParquetWriter:
    """A writer whose bytes depend on the texts and the pinned pyarrow alone: no schema copy, statistics, dictionary."""
    return pq.ParquetWriter(
        path,
        SCHEMA,
        version="2.6",
        compression="zstd",
        compression_level=3,
        use_dictionary=False,
        write_statistics=False,
        store_schema=False,
    )


def shard_paths(folder: Path) -> list[Path]:
    """The shards of `folder` in order. Raises InputError when there is none or one is missing in the middle."""
    shards = sorted(folder.glob("shard-*.parquet"))
    if not shards:
        raise InputError(folder, "holds no shard-*.parquet", "run the stage that makes it: `dvc repro prepare`")
    for number, shard in enumerate(shards):
        if shard.name != f"shard-{number:05d}.parquet":
            raise InputError(
                folder, f"shard-{number:05d}.parquet is missing, {shard.name} is there", "run `dvc repro prepare`"
            )
    return shards


def read_documents(folder: Path) -> Iterator[str]:
    """The texts of `folder` in shard order, streamed. Raises InputError for a missing, torn or foreign shard."""
    for shard in shard_paths(Path(folder)):
        for row, text in enumerate(read_texts(shard, COLUMN)):
            if text is None:
                raise InputError(shard, f"row {row} has no text", "run `dvc repro prepare`")
            yield text


def read_texts(path: Path, column: str, *, where: object = None) -> Iterator[str | None]:
    """The values of the string column `column` of any parquet file, streamed; None where there is none.

    `where` names the file in errors (default: `path`). Raises InputError when it is no parquet file, is torn, lacks
    the column, or holds bytes that are not UTF-8.
    """
    where = where or path
    with open_parquet(path, where=where) as file:
        check_column(file, column, where)
        done = 0
        try:
            for batch in file.iter_batches(batch_size=READ_BATCH, columns=[column]):
                yield from batch.column(0).to_pylist()
                done += batch.num_rows
        except UnicodeDecodeError as error:
            what = (
                f"column {column!r} is not UTF-8 at byte {error.start} of a text in rows {done} to {done + READ_BATCH}"
            )
            raise InputError(where, what, "write the file again with UTF-8 strings") from error
        except (pa.ArrowException, OSError) as error:
            raise InputError(where, f"cannot be read after row {done}: {error}", "make or fetch it again") from error


def open_parquet(path: Path, *, where: object = None) -> pq.ParquetFile:
    """`path` opened for streaming. Raises InputError when it is no whole parquet file."""
    try:
        return pq.ParquetFile(path, memory_map=False, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise InputError(where or path, f"is no whole parquet file: {error}", "make or fetch it again") from error


def check_column(file: pq.ParquetFile, column: str, where: object) -> None:
    """Raise InputError unless `file`, called `where`, has the string column `column`."""
    schema = file.schema_arrow
    if column not in schema.names:
        near = difflib.get_close_matches(column, schema.names, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"its columns are {', '.join(schema.names) or 'none'}"
        raise InputError(where, f"has no column {column!r}", hint)
    kind = schema.field(column).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise InputError(where, f"column {column!r} holds {kind}, not text", "name a column of strings")
