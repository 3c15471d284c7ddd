"""Stage prepare: what it writes, and that bad input gives one line, exit code 2, and no output."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from ratchet.data.documents import read_documents
from ratchet.settings import child_environment
from steps.prepare import STAGE

PROJECT = Path(__file__).parents[3]
ONE_LINE = re.compile(r"[^\n]+: [^\n]+; [^\n]+\n")


def run_step(project: Path, params: object) -> subprocess.CompletedProcess[str]:
    (project / "params.yaml").write_text(yaml.safe_dump({"prepare": params}), encoding="utf-8")
    command = [sys.executable, "-m", "steps.prepare"]
    environment = child_environment(PYTHONPATH=str(PROJECT))
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=120)


def run_here(
    project: Path, params: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    """The stage's exit code and stderr, run in this process: the start of another one takes seconds."""
    (project / "params.yaml").write_text(yaml.safe_dump({"prepare": params}), encoding="utf-8")
    monkeypatch.chdir(project)
    with pytest.raises(SystemExit) as ended:
        STAGE.main()
    assert isinstance(ended.value.code, int)
    return ended.value.code, capsys.readouterr().err


def digests(project: Path) -> dict[str, str]:
    return {
        str(path.relative_to(project)): hashlib.sha256(path.read_bytes()).hexdigest()
        for folder in ("data", "metrics")
        for path in sorted((project / folder).rglob("*"))
        if path.is_file() and path.name != "provenance.json"
    }


def write_corpus(folder: Path, texts: list[str]) -> None:
    folder.mkdir(parents=True)
    (folder / "all.txt").write_text("\n---\n".join(texts), encoding="utf-8")


def own_text(**more: Any) -> dict[str, Any]:
    return {
        "source": "text",
        "val_share": 0.2,
        "test_share": 0.2,
        "text": {"folder": "corpus", "separator": "\n---\n"},
    } | more


def test_step_on_own_text_writes_three_splits_and_their_manifest(tmp_path: Path) -> None:
    project = tmp_path / "a project, with é"
    texts = [f"document {number} says 日本 😀" for number in range(100)]
    write_corpus(project / "corpus", [*texts, texts[0], " ", texts[50]])
    done = run_step(project, own_text(shard_documents=25))
    assert (done.returncode, done.stderr) == (0, "")
    found = {name: list(read_documents(project / "data/prepare" / name)) for name in ("train", "val", "test")}
    assert sorted(text for kept in found.values() for text in kept) == sorted(texts)
    manifest = json.loads((project / "metrics/prepare.json").read_text(encoding="utf-8"))
    assert manifest["dropped"] == {
        "empty": 1,
        "duplicates_within": 2,
        "duplicates_across": 0,
        "surrogates_replaced": 0,
    }
    for name, kept in found.items():
        split = manifest["splits"][name]
        assert split["documents"] == len(kept) > 0
        assert split["bytes"] == sum(len(text.encode()) for text in kept)
        assert split["characters"] == sum(len(text) for text in kept)
        assert split["shards"] == len(list((project / "data/prepare" / name).glob("*.parquet")))
    assert manifest["documents"] == 100
    assert str(tmp_path) not in json.dumps(manifest)


def test_step_run_in_two_processes_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        write_corpus(tmp_path / name / "corpus", [f"document {number}" for number in range(60)])
    assert run_step(tmp_path / "a", own_text()).returncode == 0
    assert run_here(tmp_path / "b", own_text(), monkeypatch, capsys) == (0, "")
    assert digests(tmp_path / "a") == digests(tmp_path / "b") != {}


def test_step_that_fails_as_a_process_exits_2_and_leaves_the_earlier_outputs_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_corpus(tmp_path / "corpus", [f"document {number}" for number in range(60)])
    assert run_here(tmp_path, own_text(), monkeypatch, capsys) == (0, "")
    before = digests(tmp_path)
    (tmp_path / "corpus/more.txt").write_bytes(b"caf\xe9")
    done = run_step(tmp_path, own_text())
    assert done.returncode == 2
    assert ONE_LINE.fullmatch(done.stderr)
    assert digests(tmp_path) == before


def test_step_sees_more_documents_and_moves_none_between_splits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [f"document {number}" for number in range(120)]
    splits = []
    for name, some in (("few", texts[:60]), ("many", texts)):
        write_corpus(tmp_path / name / "corpus", some)
        assert run_here(tmp_path / name, own_text(), monkeypatch, capsys) == (0, "")
        splits.append(
            {part: set(read_documents(tmp_path / name / "data/prepare" / part)) for part in ("train", "val", "test")}
        )
    for part in ("train", "val", "test"):
        assert splits[0][part] < splits[1][part]


def _text_files(*contents: bytes) -> Callable[[Path], None]:
    def write(project: Path) -> None:
        (project / "corpus").mkdir()
        for number, content in enumerate(contents):
            (project / f"corpus/{number}.txt").write_bytes(content)

    return write


def _parquet_file(**columns: list[Any]) -> Callable[[Path], None]:
    def write(project: Path) -> None:
        (project / "corpus").mkdir()
        pq.write_table(pa.table(columns), project / "corpus/1.parquet")

    return write


def _no_parquet(project: Path) -> None:
    (project / "corpus").mkdir()
    (project / "corpus/1.parquet").write_text("<html>please log in</html>")


def _nothing(project: Path) -> None:
    pass


BAD = {
    "no folder": (_nothing, own_text(), "prepare.text.folder: 'corpus' does not exist"),
    "empty corpus": (_text_files(), own_text(), "no file in 'corpus' matches"),
    "empty files": (_text_files(b"", b""), own_text(), "corpus text holds no document with text (files 2, empty 0)"),
    "no text": (_text_files(b" \n---\n\t"), own_text(), "holds no document with text (files 1, empty 2)"),
    "one document": (_text_files(b"all alone"), own_text(), "is empty: 1 distinct document(s) fell train"),
    "the same document": (_text_files(*[b"again"] * 30), own_text(), "is empty: 1 distinct document(s)"),
    "not UTF-8": (_text_files(b"fine", b"caf\xe9"), own_text(), "corpus/1.txt: is not UTF-8 at byte 3 (0xe9)"),
    "no column": (
        _parquet_file(body=["a"]),
        {"source": "parquet"},
        "1.parquet: has no column 'text'; its columns are body",
    ),
    "numbers": (_parquet_file(text=[1, 2]), {"source": "parquet"}, "column 'text' holds int64, not text"),
    "nulls": (_parquet_file(text=pa.array([None], pa.string())), {"source": "parquet"}, "holds no document with text"),
    "no parquet": (_no_parquet, {"source": "parquet"}, "1.parquet: is no whole parquet file"),
    "wrong pin": (_text_files(b"a"), own_text(text={"sha256": "0" * 64}), "prepare.text.sha256: the text folder has"),
    "no pin": (_nothing, {}, "prepare.package.sha256: no sha256 is pinned for wiki-leads-en"),
    "typo": (_nothing, {"sauce": "text"}, "unknown key 'prepare.sauce'; did you mean 'source'?"),
    "typo below": (_nothing, {"text": {"foldr": "x"}}, "unknown key 'prepare.text.foldr'; did you mean 'folder'?"),
    "wrong type": (_nothing, {"shard_documents": "many"}, "prepare.shard_documents = 'many': "),
    "out of range": (_nothing, {"val_share": 0.0}, "prepare.val_share = 0.0: "),
    "unknown source": (_nothing, {"source": "web"}, "prepare.source = 'web': "),
}


@pytest.mark.parametrize("name", BAD)
def test_step_with_bad_input_says_one_line_exits_2_and_leaves_no_output(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lay_out, params, says = BAD[name]
    lay_out(tmp_path)
    code, errors = run_here(tmp_path, params, monkeypatch, capsys)
    assert code == 2
    assert ONE_LINE.fullmatch(errors), errors
    assert says in errors
    left = [path for folder in ("data", "metrics") for path in (tmp_path / folder).rglob("*") if path.is_file()]
    assert left == []


def test_step_with_the_project_params_prepares_the_smoke_corpus(tmp_path: Path) -> None:
    params = yaml.safe_load((PROJECT / "params.yaml").read_text(encoding="utf-8"))["prepare"]
    params["package"]["corpus"] = "wiki-leads-smoke"
    done = run_step(tmp_path, params)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "prepare: train 906 documents, 439,502 bytes in 1 shard(s)",
        "prepare: val 50 documents, 23,236 bytes in 1 shard(s)",
        "prepare: test 48 documents, 22,767 bytes in 1 shard(s)",
    ]
