"""Packed splits: all text comes back out of the rows, the files keep their promises, the stage refuses bad input."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.core.errors import InfrastructureError, InputError
from ratchet.data import encoding
from ratchet.data.packing import PackedSplit, pack_split
from ratchet.data.row_plan import Gaps
from ratchet.data.tokenizer import Tokenizer
from ratchet.data.tokenizer_training import train
from ratchet.settings import child_environment
from shards import write_documents

SENTENCE = "the ratchet turns one way only; größer 日本 🙂 and 12345 more words of text, don't they say"


def make_texts(count: int, seed: int = 0, longest: int = 80) -> list[str]:
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(SENTENCE.split(), generator.integers(1, longest))) for _ in range(count)]


TEXTS = make_texts(120)


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    caps = {"max_characters": 10**6, "max_document_characters": 10**6}
    train(TEXTS, vocab_size=300, where="corpus", **caps)[0].save(folder)
    return folder


def pack(
    texts: list[str], tokenizer_folder: Path, folder: Path, gaps: Gaps, *, sequence_len: int = 32, workers: int = 1
) -> PackedSplit:
    folder.mkdir(parents=True, exist_ok=True)
    pack_split(texts, tokenizer_folder, folder, sequence_len=sequence_len, gaps=gaps, where="corpus", workers=workers)
    return PackedSplit.load(folder)


def texts_in_rows(rows: np.ndarray, tokenizer: Tokenizer) -> list[list[int]]:
    """What a reader of consecutive rows sees: documents between BOSes, a row without a BOS first continues the last."""
    stream = rows[0].tolist()
    for row in rows[1:].tolist():
        if row[0] != tokenizer.bos:
            assert row[0] == stream[-1], "a continuation overlaps by the last id"
            row = row[1:]
        stream += row
    documents: list[list[int]] = []
    for one in stream:
        if one == tokenizer.bos:
            documents.append([])
        else:
            documents[-1].append(one)
    return [ids for ids in documents if ids]


def test_packing_training_rows_are_full_and_hold_every_document_but_the_counted_rest(
    tokenizer_folder: Path, tmp_path: Path
) -> None:
    tokenizer = Tokenizer.load(tokenizer_folder)
    split = pack(TEXTS, tokenizer_folder, tmp_path / "train", Gaps.FILL)
    assert split.rows.shape == (split.manifest["rows"], 33)
    assert split.rows.dtype == np.uint16
    assert split.pieces is None
    assert not np.isin(split.rows, [tokenizer.pad]).any()
    found = Counter(map(tuple, texts_in_rows(split.rows, tokenizer)))
    given = Counter(tuple(tokenizer.encode(text)) for text in TEXTS)
    whole = given & found
    lost = sum((given - whole).elements(), ()), sum((found - whole).elements(), ())
    assert len(lost[0]) - len(lost[1]) == split.manifest["lost_tokens"] < 33


@pytest.mark.parametrize("gaps", Gaps)
def test_packing_manifest_figures_are_those_of_the_rows(tokenizer_folder: Path, tmp_path: Path, gaps: Gaps) -> None:
    tokenizer = Tokenizer.load(tokenizer_folder)
    split = pack(TEXTS, tokenizer_folder, tmp_path / "split", gaps)
    manifest, sizes = split.manifest, [len(tokenizer.encode(text)) for text in TEXTS]
    padding = int((split.rows == tokenizer.pad).sum())
    assert manifest["documents"] == len(TEXTS)
    assert manifest["tokens"] == sum(sizes)
    assert manifest["bytes"] == sum(len(text.encode()) for text in TEXTS)
    assert manifest["bytes_per_token"] == manifest["bytes"] / manifest["tokens"]
    assert manifest["padding_slots"] == padding
    assert manifest["utilisation"] == 1 - padding / split.rows.size
    assert manifest["longer_documents"] == sum(size + 1 > 33 for size in sizes) > 0
    assert manifest["continued_documents"] >= manifest["longer_documents"]
    assert manifest["files"]["rows.npy"] == (split.folder / "rows.npy").stat().st_size
    assert (split.sequence_len, split.vocab_size) == (32, 300)
    assert not list(split.folder.glob("*.tmp"))


@settings(max_examples=25, deadline=None)
@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60), min_size=1, max_size=12),
    sequence_len=st.integers(2, 40),
)
def test_packing_validation_pieces_give_back_every_byte_of_every_document(
    tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory, texts: list[str], sequence_len: int
) -> None:
    tokenizer = Tokenizer.load(tokenizer_folder)
    folder = tmp_path_factory.mktemp("val")
    split = pack(texts, tokenizer_folder, folder, Gaps.PAD, sequence_len=sequence_len)
    assert split.pieces is not None
    targets = split.rows[:, 1:]
    found: dict[int, list[int]] = {}
    for document, row, start, stop in zip(*split.pieces, strict=True):
        found.setdefault(int(document), []).extend(targets[row, start:stop].tolist())
    assert [tokenizer.decode(found[document]) for document in range(len(texts))] == texts
    assert sum(int(tokenizer.token_bytes[ids].sum()) for ids in found.values()) == split.manifest["bytes"]


def test_packing_validation_pieces_overlap_nowhere_and_start_after_a_bos_or_at_a_row(
    tokenizer_folder: Path, tmp_path: Path
) -> None:
    tokenizer = Tokenizer.load(tokenizer_folder)
    split = pack(TEXTS, tokenizer_folder, tmp_path / "val", Gaps.PAD)
    assert split.pieces is not None
    owner = np.zeros((len(split.rows), 32), dtype=int)
    for row, start, stop in zip(*split.pieces[1:], strict=True):
        owner[row, start:stop] += 1
        assert start == 0 or split.rows[row, start] == tokenizer.bos
    special = split.rows[:, 1:] >= tokenizer.bos
    assert np.array_equal(owner, 1 - special)


def test_packing_in_processes_gives_the_same_bytes_as_in_one(
    tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "BATCH_CHARACTERS", 500)
    assert len(list(encoding._batches(TEXTS))) > encoding.BATCHES_WORTH_PROCESSES
    one = pack(TEXTS, tokenizer_folder, tmp_path / "one", Gaps.PAD, workers=1)
    two = pack(TEXTS, tokenizer_folder, tmp_path / "two", Gaps.PAD, workers=2)
    for path in one.folder.iterdir():
        assert path.read_bytes() == (two.folder / path.name).read_bytes()


def test_packing_ids_above_65535_are_stored_in_four_bytes(tmp_path: Path) -> None:
    pairs = [bytes([high, low]) for high in range(255, -1, -1) for low in range(255, -1, -1)]
    tokenizer = Tokenizer([bytes([byte]) for byte in range(256)] + pairs)
    (folder := tmp_path / "tokenizer").mkdir()
    tokenizer.save(folder)
    text = "\x00" * 40  # spelled by a pair whose id is above 65,535
    assert max(tokenizer.encode(text)) > 65_535
    split = pack([text], folder, tmp_path / "val", Gaps.PAD)
    assert split.rows.dtype == np.uint32
    assert split.rows[0, 1 : 1 + len(tokenizer.encode(text))].tolist() == tokenizer.encode(text)


@pytest.mark.parametrize(
    ("texts", "gaps", "message"),
    [
        ([], Gaps.FILL, "corpus: holds no documents"),
        ([], Gaps.PAD, "corpus: holds no documents"),
        (["a", "", "b"], Gaps.PAD, "corpus: document 1 has no text"),
        (["x y z"], Gaps.FILL, r"its 6 ids do not fill one row of sequence_len \+ 1 = 33; lower pack.sequence_len"),
    ],
)
def test_packing_what_gives_no_rows_is_refused(
    tokenizer_folder: Path, tmp_path: Path, texts: list[str], gaps: Gaps, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        pack(texts, tokenizer_folder, tmp_path / "split", gaps)


def test_packed_split_truncated_rows_are_refused_with_path_expected_and_found_size(
    tokenizer_folder: Path, tmp_path: Path
) -> None:
    split = pack(TEXTS, tokenizer_folder, tmp_path / "val", Gaps.PAD)
    for name in ("rows.npy", "pieces.npy"):
        path = split.folder / name
        data = path.read_bytes()
        path.write_bytes(data[:-10])
        with pytest.raises(InputError) as error:
            PackedSplit.load(split.folder)
        assert str(path) in str(error.value)
        assert f"holds {len(data) - 10} bytes, its manifest says {len(data)}" in str(error.value)
        path.unlink()
        with pytest.raises(InputError, match=f"{name}: no such file"):
            PackedSplit.load(split.folder)
        path.write_bytes(data)
    PackedSplit.load(split.folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "is no ratchet-pack manifest"),
        ({"version": 2}, "has version 2"),
        ({"rows": 3}, r"rows.npy: holds uint16 \[\d+, 33\], its manifest says uint16 \[3, 33\]"),
        ({"vocab_size": 70_000}, "its manifest says uint32"),
        ({"rows": None, "files": None}, "lacks rows, files"),
    ],
)
def test_packed_split_foreign_manifest_is_refused(
    tokenizer_folder: Path, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    split = pack(TEXTS, tokenizer_folder, tmp_path / "val", Gaps.PAD)
    path = split.folder / "manifest.json"
    changed = {key: value for key, value in {**split.manifest, **changes}.items() if value is not None}
    path.write_text(json.dumps(changed), encoding="utf-8")
    with pytest.raises(InputError, match=message):
        PackedSplit.load(split.folder)
    path.write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match="is no JSON"):
        PackedSplit.load(split.folder)
    path.unlink()
    with pytest.raises(InputError, match=r"manifest\.json: no such file"):
        PackedSplit.load(split.folder)


def make_project(project: Path, tokenizer_folder: Path, *, sequence_len: object = 32, **splits: list[str]) -> None:
    given = {"train": TEXTS, "val": TEXTS[:20], "test": TEXTS[20:40], **splits}
    for name, texts in given.items():
        write_documents(project / "data/prepare" / name, texts)
    shutil.copytree(tokenizer_folder, project / "data/tokenizer")
    (project / "params.yaml").write_text(yaml.safe_dump({"pack": {"sequence_len": sequence_len}}), encoding="utf-8")


def run_stage(project: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "steps.pack"]
    return subprocess.run(command, cwd=project, env=child_environment(), capture_output=True, text=True, check=False)


def left_over(project: Path) -> list[str]:
    """Files the stage has left below data/pack and metrics, hidden temps included."""
    return sorted(str(p.relative_to(project)) for top in ("data/pack", "metrics") for p in (project / top).rglob("*"))


@pytest.mark.slow
def test_pack_stage_writes_three_splits_and_their_figures(tokenizer_folder: Path, tmp_path: Path) -> None:
    project = tmp_path / "größe mit blank"
    make_project(project, tokenizer_folder)
    done = run_stage(project)
    assert (done.returncode, done.stderr) == (0, "")
    metrics = json.loads((project / "metrics/pack.json").read_text(encoding="utf-8"))
    for name, pieces in (("train", False), ("val", True), ("test", True)):
        split = PackedSplit.load(project / "data/pack" / name)
        assert (split.pieces is not None) == pieces
        assert metrics[name]["rows"] == len(split.rows)
        assert metrics[name].items() <= split.manifest.items()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sequence_len": 100_000}, "data/prepare/train: its"),
        ({"sequence_len": 1}, "pack.sequence_len = 1"),
        ({"sequence_len": "long"}, "pack.sequence_len = 'long'"),
        ({"test": []}, "data/prepare/test: holds no shard"),
        ({"test": ["one", ""]}, "data/prepare/test: document 1 has no text"),
        ({"train": ["one"]}, "data/prepare/train: its"),
    ],
)
def test_pack_stage_bad_input_is_one_line_exit_code_2_and_no_output(
    tokenizer_folder: Path, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    make_project(tmp_path, tokenizer_folder, **changes)  # pyright: ignore[reportArgumentType]
    done = run_stage(tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert message in done.stderr
    assert left_over(tmp_path) == []


@pytest.mark.slow
def test_pack_stage_bad_input_leaves_an_earlier_result_as_it_was(tokenizer_folder: Path, tmp_path: Path) -> None:
    make_project(tmp_path, tokenizer_folder)
    assert run_stage(tmp_path).returncode == 0
    before = left_over(tmp_path), (tmp_path / "data/pack/train/rows.npy").read_bytes()
    write_documents(tmp_path / "data/prepare/test", ["one", ""])
    assert run_stage(tmp_path).returncode == 2
    assert (left_over(tmp_path), (tmp_path / "data/pack/train/rows.npy").read_bytes()) == before


@pytest.mark.slow
def test_pack_stage_full_disk_is_one_line_exit_code_2_and_no_output(tokenizer_folder: Path, tmp_path: Path) -> None:
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine does not let a process mount a small file system of its own")
    make_project(tmp_path / "source", tokenizer_folder, train=TEXTS * 500)
    (mounted := tmp_path / "mounted").mkdir()
    script = (
        'mount -t tmpfs -o size=1m tmpfs "$1" && cp -r "$2/." "$1" && cd "$1" && '
        '"$3" -m steps.pack; echo "exit $?"; find data/pack metrics'
    )
    command = ["unshare", "-rm", "sh", "-c", script, "sh", str(mounted), str(tmp_path / "source"), sys.executable]
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, check=False)
    assert done.stderr.startswith("pack: the disk is full while writing"), done
    assert done.stdout.split("\n")[:2] == ["exit 2", "data/pack"]
    assert "rows.npy" not in done.stdout
    assert ".ratchet-tmp-" not in done.stdout


@pytest.mark.slow
def test_encode_process_that_is_killed_is_an_infrastructure_error(tokenizer_folder: Path) -> None:
    batches = encoding.encode_split(
        itertools.repeat("some words " * 100_000), Tokenizer.load(tokenizer_folder), workers=2
    )
    next(batches)
    workers = [child for child in psutil.Process().children() if "spawn_main" in " ".join(child.cmdline())]
    workers[0].kill()
    with pytest.raises(InfrastructureError, match="one of 2 encoding processes was killed"):
        list(batches)


@pytest.mark.slow
def test_encode_processes_end_when_their_parent_is_killed(tokenizer_folder: Path) -> None:
    script = (
        "import itertools, sys\n"
        "from pathlib import Path\n"
        "from ratchet.data.encoding import encode_split\n"
        "from ratchet.data.tokenizer import Tokenizer\n"
        "if __name__ == '__main__':\n"
        "    texts = itertools.repeat('some words ' * 100_000)\n"
        "    for batch in encode_split(texts, Tokenizer.load(Path(sys.argv[1])), workers=2):\n"
        "        print('batch', flush=True)\n"
    )
    program = tokenizer_folder.parent / f"{tokenizer_folder.name}.py"
    program.write_text(script, encoding="utf-8")
    command = [sys.executable, str(program), str(tokenizer_folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=child_environment(), text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "batch\n"
        children = psutil.Process(parent.pid).children(recursive=True)
        parent.kill()
    assert len(children) >= 2
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive
