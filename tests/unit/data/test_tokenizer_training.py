"""Learning the merges: from training documents within the caps, the same bytes every time, and the stage's errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ratchet.core.errors import InputError
from ratchet.data.tokenizer import Tokenizer
from ratchet.data.tokenizer_training import Sample, train
from ratchet.settings import child_environment
from shards import write_documents

TEXTS = [f"Sentence number {number} speaks of {number * 7919 % 1000} things." for number in range(40)]
PARAMS = {"vocab_size": 300, "max_characters": 100_000, "max_document_characters": 10_000}


def learn(texts: list[str], **caps: int) -> tuple[Tokenizer, Sample]:
    values = {"vocab_size": 270, "max_characters": 10**6, "max_document_characters": 10**6, **caps}
    return train(iter(texts), where="corpus", **values)


def run_stage(project: Path, *, params: dict[str, object] = PARAMS, **environment: str) -> subprocess.CompletedProcess:
    (project / "params.yaml").write_text(yaml.safe_dump({"tokenizer": params}), encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "steps.tokenizer"],
        cwd=project,
        env=child_environment(**environment),
        capture_output=True,
        text=True,
        check=False,
    )


def outputs(project: Path) -> dict[str, bytes]:
    """What deterministic files the stage has left, temp files included."""
    files = [path for path in project.rglob("*") if path.is_file() and "provenance" not in path.name]
    return {str(path.relative_to(project)): path.read_bytes() for path in files if "prepare" not in path.parts}


def test_training_stops_at_the_character_cap_and_reads_no_further_document() -> None:
    read = []

    def texts():
        for text in ["abcabcabc " * 10, "xyzxyzxyz " * 10, "never read"]:
            read.append(text)
            yield text

    _, sample = train(texts(), vocab_size=262, max_characters=150, max_document_characters=10**6, where="corpus")
    assert (sample.documents, sample.characters) == (2, 150)
    assert "".join(read).startswith("abc")
    tokenizer, _ = learn(["aaaa " * 10, "qqqq " * 10], vocab_size=261, max_characters=20)
    assert b"aa" in tokenizer.merges[256:]
    assert not any(b"q" in merge for merge in tokenizer.merges[256:])


def test_training_takes_no_more_of_a_document_than_its_cap() -> None:
    tokenizer, sample = learn(["ab" * 50 + "zz" * 500, "ab" * 50], vocab_size=261, max_document_characters=100)
    assert sample.characters == 200
    assert not any(b"z" in merge for merge in tokenizer.merges[256:])


def test_training_counts_what_it_read() -> None:
    _, sample = learn(["é" * 100 + "ab" * 100, "x\ud800" * 10], vocab_size=262)
    assert sample == Sample(documents=2, characters=320, bytes=440, surrogates_replaced=10)


def test_training_survives_a_run_of_blanks_that_overflows_the_regex_engine() -> None:
    cap = 2_000_000
    tokenizer, sample = learn(
        ["ab" + " " * 1_000_001 + "ab"], vocab_size=262, max_characters=cap, max_document_characters=cap
    )
    assert (tokenizer.vocab_size, sample.characters) == (262, 1_000_005)


@pytest.mark.parametrize("vocab_size", [-1, 0, 255, 256, 259])
def test_training_a_vocabulary_without_room_for_bytes_and_specials_is_refused(vocab_size: int) -> None:
    with pytest.raises(InputError, match=rf"vocab_size = {vocab_size} cannot hold.*to 260 or more"):
        learn(TEXTS, vocab_size=vocab_size)


def test_training_the_smallest_vocabulary_is_bytes_and_specials() -> None:
    tokenizer, _ = learn(TEXTS, vocab_size=260)
    assert len(tokenizer.merges) == 256
    assert tokenizer.decode(tokenizer.encode("é🙂")) == "é🙂"


def test_training_too_little_text_names_the_largest_vocabulary_it_gives() -> None:
    with pytest.raises(
        InputError, match=r"corpus: 5 bytes of text give 264 tokens, fewer than vocab_size = 300"
    ) as error:
        learn(["hello"], vocab_size=300)
    assert "at most 264" in str(error.value)
    assert learn(["hello"], vocab_size=264)[0].vocab_size == 264


@pytest.mark.parametrize("texts", [[], [""], ["", ""]])
def test_training_no_text_is_refused(texts: list[str]) -> None:
    with pytest.raises(InputError, match="corpus: holds no text"):
        learn(texts)


@pytest.mark.slow
def test_tokenizer_stage_gives_the_same_bytes_for_every_number_of_threads(tmp_path: Path) -> None:
    found = []
    for threads in ("1", "2"):
        project = tmp_path / threads
        write_documents(project / "data/prepare/train", TEXTS)
        done = run_stage(project, RAYON_NUM_THREADS=threads)
        assert (done.returncode, done.stderr) == (0, "")
        found.append(outputs(project))
    assert found[0] == found[1]
    assert set(found[0]) == {
        "params.yaml", "metrics/tokenizer.json", "data/tokenizer/tokenizer.json", "data/tokenizer/token_bytes.npy"
    }  # fmt: skip
    metrics = json.loads(found[0]["metrics/tokenizer.json"])
    assert (metrics["vocab_size"], metrics["documents"]) == (300, len(TEXTS))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("texts", "params", "message"),
    [
        (TEXTS, {**PARAMS, "vocab_size": 200}, "vocab_size = 200 cannot hold"),
        (TEXTS, {**PARAMS, "vocab_size": 60_000}, "fewer than vocab_size = 60000"),
        ([""], PARAMS, "data/prepare/train: holds no text in 1 documents"),
        (["one"], PARAMS, "data/prepare/train: 3 bytes of text give 262 tokens"),
        (None, PARAMS, "data/prepare/train does not exist"),
        (TEXTS, {**PARAMS, "vocabsize": 300}, "did you mean 'vocab_size'?"),
        (TEXTS, {**PARAMS, "vocab_size": "many"}, "tokenizer.vocab_size = 'many'"),
        (TEXTS, {**PARAMS, "max_characters": 0}, "tokenizer.max_characters = 0"),
    ],
)
def test_tokenizer_stage_bad_input_is_one_line_exit_code_2_and_no_output(
    tmp_path: Path, texts: list[str] | None, params: dict[str, object], message: str
) -> None:
    if texts is not None:
        write_documents(tmp_path / "data/prepare/train", texts)
    done = run_stage(tmp_path, params=params)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert set(outputs(tmp_path)) == {"params.yaml"}
