"""`set_source` edits values in params.yaml and nothing else."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import yaml

from ratchet.core.errors import InputError
from ratchet.data.own_text import set_source, set_value
from ratchet.params import load
from steps.prepare import PrepareParams

PROJECT_PARAMS = Path(__file__).parents[3] / "params.yaml"


@pytest.fixture
def params(tmp_path: Path) -> Path:
    path = tmp_path / "my project é" / "params.yaml"
    path.parent.mkdir()
    path.write_text(PROJECT_PARAMS.read_text(encoding="utf-8"), encoding="utf-8")
    return path


@pytest.fixture
def letters(tmp_path: Path) -> Path:
    folder = tmp_path / "my letters, ü #1"
    folder.mkdir()
    (folder / "a.txt").write_text("one---two", encoding="utf-8")
    (folder / "b.txt").write_text("drei ä", encoding="utf-8")
    return folder


def test_set_source_text_changes_four_values_and_keeps_every_comment(params: Path, letters: Path) -> None:
    before = params.read_text(encoding="utf-8").splitlines()
    said = set_source(params, "text", letters, separator="---", language="de")
    after = params.read_text(encoding="utf-8").splitlines()
    changed = [new for old, new in zip(before, after, strict=True) if old != new]
    assert [line.split(":")[0].strip() for line in changed] == ["source", "folder", "separator", "language", "sha256"]
    assert all("#" in new for old, new in zip(before, after, strict=True) if "#" in old)
    assert "2 file(s)" in said
    assert "3 documents, 12 characters" in said


def test_set_source_text_gives_params_that_prepare_accepts(params: Path, letters: Path) -> None:
    set_source(params, "text", letters)
    section = load("prepare", PrepareParams, params)
    assert (section.source, section.text.folder, section.text.separator) == ("text", str(letters), None)
    lines = "".join(
        f"{hashlib.sha256((letters / name).read_bytes()).hexdigest()}  {name}\n" for name in ("a.txt", "b.txt")
    )
    assert section.text.sha256 == hashlib.sha256(lines.encode()).hexdigest()


def test_set_source_again_after_a_change_pins_the_new_sha256(params: Path, letters: Path) -> None:
    set_source(params, "text", letters, separator="\n\n")
    first = load("prepare", PrepareParams, params)
    (letters / "c.txt").write_text("four", encoding="utf-8")
    set_source(params, "text", letters)
    second = load("prepare", PrepareParams, params)
    assert first.text.sha256 != second.text.sha256
    assert second.text.separator == "\n\n"


def test_set_source_of_a_folder_in_the_project_is_written_relative(params: Path) -> None:
    inside = params.parent / "corpus"
    inside.mkdir()
    (inside / "a.txt").write_text("text", encoding="utf-8")
    set_source(params, "text", inside)
    assert load("prepare", PrepareParams, params).text.folder == "corpus"


@pytest.mark.parametrize(
    ("content", "options", "says"),
    [
        (b"caf\xe9", {}, "not UTF-8 at byte 3"),
        (b" \n", {}, "hold no text"),
        (b"text", {"glob": "*.md"}, "matches '*.md'"),
        (b"text", {"seperator": "-"}, "did you mean 'separator'?"),
    ],
)
def test_set_source_of_unfit_files_says_why_and_leaves_params_alone(
    params: Path, tmp_path: Path, content: bytes, options: dict[str, str], says: str
) -> None:
    before = params.read_bytes()
    folder = tmp_path / "letters"
    folder.mkdir()
    (folder / "a.txt").write_bytes(content)
    with pytest.raises(InputError) as caught:
        set_source(params, "text", folder, **options)
    assert says in str(caught.value)
    assert params.read_bytes() == before


def test_set_source_of_a_missing_folder_names_it(params: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere' does not exist"):
        set_source(params, "parquet", tmp_path / "nowhere")


@pytest.mark.parametrize(
    "value", ["plain", "a: b", "# no comment", "true", "12", "", " x ", "\n\n", 'say "hi"', "é日", "~"]
)
def test_set_value_reads_back_as_the_same_string(value: str) -> None:
    text = "a:\n  b: old  # why\n  c: 1\n"
    new = set_value(text, "a.b", value, "here")
    assert yaml.safe_load(new) == {"a": {"b": value, "c": 1}}
    assert new.endswith("  # why\n  c: 1\n")


def test_set_value_fills_an_empty_value() -> None:
    assert set_value("a:\n  b:\n  c: 1\n", "a.b", "new", "here") == "a:\n  b: new\n  c: 1\n"


def test_set_value_of_a_missing_key_or_a_mapping_is_refused() -> None:
    with pytest.raises(InputError, match=r"has no key 'a\.x'"):
        set_value("a: {b: 1}", "a.x", "new", "here")
    with pytest.raises(InputError, match="a holds a map"):
        set_value("a: {b: 1}", "a", "new", "here")
