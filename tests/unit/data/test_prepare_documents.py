"""Shards: the same bytes for the same texts, read back in order, never silently short."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ratchet.core.errors import InputError
from ratchet.data.documents import read_documents, read_texts
from shards import write_documents

TEXTS = [f"document {number}: é 日本 😀 \x00\r\n" for number in range(2500)]


def test_documents_come_back_in_order_from_shards_of_a_fixed_size(tmp_path: Path) -> None:
    write_documents(tmp_path / "texts", TEXTS, shard_documents=1200)
    names = sorted(path.name for path in (tmp_path / "texts").iterdir())
    assert names == ["shard-00000.parquet", "shard-00001.parquet", "shard-00002.parquet"]
    assert [pq.read_metadata(tmp_path / "texts" / name).num_rows for name in names] == [1200, 1200, 100]
    assert list(read_documents(tmp_path / "texts")) == TEXTS


def test_documents_written_twice_are_the_same_bytes_and_carry_no_pandas_metadata(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_documents(tmp_path / name, iter(TEXTS))
    assert (tmp_path / "a/shard-00000.parquet").read_bytes() == (tmp_path / "b/shard-00000.parquet").read_bytes()
    assert pq.read_metadata(tmp_path / "a/shard-00000.parquet").metadata is None


def test_documents_whose_writer_fails_leave_what_was_there(tmp_path: Path) -> None:
    def failing() -> object:
        yield "new"
        raise OSError(28, "No space left on device")

    write_documents(tmp_path / "texts", ["old"])
    with pytest.raises(OSError, match="No space"):
        write_documents(tmp_path / "texts", failing())  # pyright: ignore[reportArgumentType]
    assert list(read_documents(tmp_path / "texts")) == ["old"]
    assert [path.name for path in tmp_path.iterdir()] == ["texts"]


def test_documents_of_an_empty_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no shard"):
        list(read_documents(tmp_path))


def test_documents_with_a_shard_missing_in_the_middle_are_refused(tmp_path: Path) -> None:
    write_documents(tmp_path / "texts", TEXTS, shard_documents=1000)
    (tmp_path / "texts/shard-00001.parquet").unlink()
    with pytest.raises(InputError, match=r"shard-00001\.parquet is missing"):
        list(read_documents(tmp_path / "texts"))


def test_documents_of_a_truncated_shard_are_refused_with_its_name(tmp_path: Path) -> None:
    write_documents(tmp_path / "texts", TEXTS)
    shard = tmp_path / "texts/shard-00000.parquet"
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"shard-00000\.parquet: is no whole parquet file"):
        list(read_documents(tmp_path / "texts"))


def test_documents_of_a_damaged_page_are_refused_with_the_row(tmp_path: Path) -> None:
    write_documents(tmp_path / "texts", TEXTS)
    shard = tmp_path / "texts/shard-00000.parquet"
    data = bytearray(shard.read_bytes())
    for at in range(40, len(data) // 2):
        data[at] = 0xFF
    shard.write_bytes(data)
    with pytest.raises(InputError, match="cannot be read after row"):
        list(read_documents(tmp_path / "texts"))


@pytest.mark.parametrize("kind", [pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_texts_of_other_string_columns_are_read(tmp_path: Path, kind: pa.DataType) -> None:
    pq.write_table(pa.table({"body": pa.array(["a", None, "a"]).cast(kind)}), tmp_path / "x.parquet")
    assert list(read_texts(tmp_path / "x.parquet", "body")) == ["a", None, "a"]


def test_texts_of_a_missing_column_name_the_nearest_one(tmp_path: Path) -> None:
    pq.write_table(pa.table({"texts": ["a"], "id": [1]}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match=r"has no column 'text'; did you mean 'texts'\?"):
        list(read_texts(tmp_path / "x.parquet", "text"))


def test_texts_of_a_column_of_numbers_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match="column 'text' holds int64, not text"):
        list(read_texts(tmp_path / "x.parquet", "text"))


def test_texts_that_are_not_utf8_are_refused_with_their_rows(tmp_path: Path) -> None:
    raw = pa.array([b"fine", b"caf\xe9"], pa.binary())
    broken = pa.StringArray.from_buffers(2, raw.buffers()[1], raw.buffers()[2])
    pq.write_table(pa.table({"text": broken}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match=r"not UTF-8 at byte 3 of a text in rows 0 to 256"):
        list(read_texts(tmp_path / "x.parquet", "text"))
