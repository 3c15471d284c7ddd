"""The judge against a plain float64 computation in this process, with real candidate processes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from ratchet.core.errors import InputError
from ratchet.data.packing import PackedSplit, Pieces
from ratchet.sandbox.process import ProcessSandbox
from ratchet.train.device import Device
from ratchet.train.judge import judge

VOCAB, LENGTH, ROWS = 40, 12, 11
CPU = Device("cpu", 0, "test", "test", 1)
TOKEN_BYTES = np.array([0, 0, 1, *(1 + i % 4 for i in range(VOCAB - 3))], dtype=np.int32)
TABLE = np.random.default_rng(5).normal(scale=3, size=(VOCAB, VOCAB)).astype(np.float32)

ARENA = """
import torch

class Experiment:
    batch_rows = 7  # the judge must not care

    def __init__(self, spec):
        self.table = torch.zeros(spec.vocab_size, spec.vocab_size)

    def load_state_dict(self, state):
        assert all(name.startswith("model.") for name in state), sorted(state)
        self.table.copy_(state["model.table"])

    def logits(self, tokens):
        mixed = torch.cumsum(self.table[tokens], dim=1)
        return mixed / torch.arange(1, tokens.size(1) + 1).sqrt()[:, None]

def build(spec):
    assert spec.compile is False
    return Experiment(spec)
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model that mixes all past rows of a table; its safetensors file holds optimizer state besides."""
    folder = tmp_path / "my model ü"
    folder.mkdir()
    (folder / "arena.py").write_text(ARENA)
    save_file({"model.table": TABLE, "optimizer.m": np.zeros(3, np.float32)}, folder / "model.safetensors")
    spec = {"vocab_size": VOCAB, "sequence_len": LENGTH, "dtype": "float32", "compile": True, "seed": 0}
    (folder / "spec.json").write_text(json.dumps(spec))
    return folder


@pytest.fixture
def split(tmp_path: Path) -> PackedSplit:
    """Documents 0 to 15 in eleven rows: some share a row, document 3 goes over rows 2 and 5, row 7 ends in padding."""
    rows = np.random.default_rng(0).integers(0, VOCAB, size=(ROWS, LENGTH + 1)).astype(np.uint16)
    table = [(number, row, 0, 5) for number, row in enumerate([0, 1])]
    table += [(2, 0, 6, 12), (3, 2, 0, 12), (3, 5, 0, 4), (4, 5, 5, 12), (5, 7, 0, 3)]
    table += [(6 + place, row, 0, 12) for place, row in enumerate([3, 4, 6, 8, 9, 10])]
    return packed(tmp_path, rows, table)


def packed(folder: Path, rows: np.ndarray, table: list[tuple[int, int, int, int]]) -> PackedSplit:
    pieces = Pieces(*(np.array(column) for column in zip(*table, strict=True)))
    return PackedSplit(folder, {"sequence_len": rows.shape[1] - 1, "vocab_size": VOCAB}, rows, pieces)


def expected(split: PackedSplit) -> dict[int, tuple[int, int, float]]:
    """(tokens, bytes, nats) by document, target by target in float64."""
    sums: dict[int, tuple[int, int, float]] = {}
    assert split.pieces is not None
    for document, row, start, stop in zip(*(column.tolist() for column in split.pieces), strict=True):
        ids = split.rows[row].astype(int)
        for t in range(start, stop):
            logits = TABLE[ids[: t + 1]].astype(np.float64).sum(0) / math.sqrt(t + 1)
            size = int(TOKEN_BYTES[ids[t + 1]])
            if size:
                cost = np.log(np.exp(logits).sum()) - logits[ids[t + 1]]
                old = sums.get(document, (0, 0, 0.0))
                sums[document] = (old[0] + 1, old[1] + size, old[2] + float(cost))
    return sums


@pytest.mark.slow
def test_judge_of_honest_model_equals_float64_for_any_batch_and_secret(model: Path, split: PackedSplit) -> None:
    truth = expected(split)
    scores = []
    for batch_rows, seed in ((4, None), (1, 7), (64, None)):
        result = judge(
            model, split, TOKEN_BYTES, device=CPU, batch_rows=batch_rows, sandbox=ProcessSandbox(), probe_seed=seed
        )
        table = result.documents
        assert table["document"].tolist() == sorted(truth)
        assert table["tokens"].tolist() == [truth[number][0] for number in sorted(truth)]
        assert table["bytes"].tolist() == [truth[number][1] for number in sorted(truth)]
        np.testing.assert_allclose(table["nats"], [truth[number][2] for number in sorted(truth)], rtol=3e-7)
        assert result.probe.verdict == "clean"
        assert result.probe.max_shift < 1e-5
        scores.append(result.val_bpb)
    total = sum(value[2] for value in truth.values()) / math.log(2) / sum(value[1] for value in truth.values())
    assert max(abs(score - total) for score in scores) < 1e-7


@pytest.mark.slow
def test_judge_with_another_secret_gives_the_same_bytes(model: Path, split: PackedSplit) -> None:
    first, second = (
        judge(model, split, TOKEN_BYTES, device=CPU, batch_rows=3, sandbox=ProcessSandbox()) for _ in range(2)
    )
    assert first.val_bpb == second.val_bpb
    assert first.documents.equals(second.documents)
    assert (first.probe.rows, first.probe.repeated) == (second.probe.rows, second.probe.repeated)


@pytest.mark.slow
def test_judge_of_one_row_probes_it_too(model: Path, tmp_path: Path) -> None:
    split = packed(tmp_path, np.arange(LENGTH + 1, dtype=np.uint16)[None] + 2, [(0, 0, 0, LENGTH)])
    result = judge(model, split, TOKEN_BYTES, device=CPU, batch_rows=4, sandbox=ProcessSandbox())
    assert result.probe.rows == 1
    assert result.documents["tokens"].tolist() == [LENGTH]


def test_judge_of_folder_without_weights_names_the_file(model: Path, split: PackedSplit) -> None:
    (model / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"holds no model.safetensors"):
        judge(model, split, TOKEN_BYTES, device=CPU, batch_rows=4, sandbox=ProcessSandbox())


def test_judge_of_another_vocabulary_names_both_sizes(model: Path, split: PackedSplit) -> None:
    with pytest.raises(InputError, match=r"token_bytes.npy has 39 ids, the split 40"):
        judge(model, split, TOKEN_BYTES[:-1], device=CPU, batch_rows=4, sandbox=ProcessSandbox())


def test_judge_of_training_rows_is_refused(model: Path, split: PackedSplit) -> None:
    rows = PackedSplit(split.folder, split.manifest, split.rows, None)
    with pytest.raises(InputError, match="has no documents to judge"):
        judge(model, rows, TOKEN_BYTES, device=CPU, batch_rows=4, sandbox=ProcessSandbox())


@pytest.mark.parametrize("text", ["", "{", "[]", '{"vocab_size": 40}', "\x80"])
def test_judge_of_a_broken_description_is_an_input_error(model: Path, split: PackedSplit, text: str) -> None:
    (model / "spec.json").write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=r"spec\.json: describes no model .*`dvc repro --force train`"):
        judge(model, split, TOKEN_BYTES, device=CPU, batch_rows=4, sandbox=ProcessSandbox())


def test_judge_of_unmeasured_dtype_is_refused(model: Path, split: PackedSplit) -> None:
    spec = json.loads((model / "spec.json").read_text())
    (model / "spec.json").write_text(json.dumps(spec | {"dtype": "float16"}))
    with pytest.raises(InputError, match="no measured tolerance"):
        judge(model, split, TOKEN_BYTES, device=CPU, batch_rows=4, sandbox=ProcessSandbox())
