"""documents.parquet: the judge's account of every document."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import made_result
from ratchet.core.errors import InputError
from ratchet.tables import documents


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made_result.make_result(tmp_path, steps=20, documents=10)
    return tmp_path / "data/evaluate/documents.parquet"


def test_documents_good_table_is_read(path: Path) -> None:
    assert documents.read(path)["document"].tolist() == list(range(10))


def test_documents_repeated_document_is_refused_with_its_row(path: Path) -> None:
    table = pd.read_parquet(path)
    table.loc[4, "document"] = 3
    table.to_parquet(path)
    with pytest.raises(InputError, match=r"column document, row 4: 3 .must be greater than in the row above"):
        documents.read(path)


def test_documents_without_bytes_is_refused(path: Path) -> None:
    table = pd.read_parquet(path)
    table.loc[2, "bytes"] = 0
    table.to_parquet(path)
    with pytest.raises(InputError, match=r"column bytes, row 2: 0 .must be a whole number, at least 1"):
        documents.read(path)


def test_documents_truncated_file_is_one_line(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match="not parquet") as caught:
        documents.read(path)
    assert len(str(caught.value).splitlines()) == 1


def test_documents_empty_table_says_nothing_was_judged(path: Path) -> None:
    pd.read_parquet(path).head(0).to_parquet(path)
    with pytest.raises(InputError, match="holds no document: nothing was judged"):
        documents.read(path)


def test_documents_missing_file_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file; run `dvc repro evaluate`"):
        documents.read(tmp_path / "documents.parquet")
