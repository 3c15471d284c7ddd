"""What docs/data.md says of the corpora is what prepare does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ratchet.data.own_text import set_source
from ratchet.data.sources.package import CORPORA, PackageParams, PackageSource
from ratchet.data.splitting import SplitRule, Splitter
from ratchet.params import load
from steps.prepare import PrepareParams

PROJECT = Path(__file__).parents[3]
PAGE = (PROJECT / "docs/data.md").read_text(encoding="utf-8")
ROW = re.compile(r"\| `([\w-]+)` \| ([\d,]+) \| ([\d.]+) MB \| ([\d,]+) / ([\d,]+) / ([\d,]+) \| ([^|]+) \|")
ROWS = {row[1]: row for row in ROW.finditer(PAGE)}


@pytest.mark.parametrize("corpus", [name for name in CORPORA if name != "botocore"])
def test_docs_table_states_what_the_package_corpus_gives(corpus: str) -> None:
    params = load("prepare", PrepareParams, PROJECT / "params.yaml")
    splitter = Splitter(SplitRule(params.val_share, params.test_share, params.split_seed))
    opened = PackageSource(PackageParams.model_validate({**params.package.model_dump(), "corpus": corpus})).open()
    for document in opened.documents():
        splitter.place(document)
    counts = splitter.counts
    documents = [f"{counts[name].documents:,}" for name in ("train", "val", "test")]
    size = sum(count.bytes for count in counts.values()) / 1e6
    row = ROWS[corpus]
    assert [row[4], row[5], row[6]] == documents
    assert row[2] == f"{sum(count.documents for count in counts.values()):,}"
    assert (row[3], row[7]) == (f"{size:.2f}", opened.licence)


def test_docs_help_topics_become_a_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = next(code for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "pydoc_data" in code)
    monkeypatch.chdir(tmp_path)
    exec(block, {})
    params = tmp_path / "params.yaml"
    params.write_text((PROJECT / "params.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    said = set_source(params, "text", Path("topics"))
    assert int(re.findall(r"([\d,]+) documents", said)[0]) > 60
    assert load("prepare", PrepareParams, params).text.folder == "topics"
