"""Stage evaluate on a toy pipeline of its own: packed text, a bigram model, the real judge, the real baseline."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from ratchet.core.errors import InputError
from ratchet.data.packing import pack_split
from ratchet.data.row_plan import Gaps
from ratchet.data.tokenizer_training import train
from ratchet.tables import metrics as metrics_table
from ratchet.train.device import Device, resolve_device
from ratchet.train.judge import Judgement
from ratchet.train.refusal import Refused
from shards import write_documents
from steps import evaluate
from steps.evaluate import EvaluateParams, Inputs, Outputs, run

TRAIN = [f"the cat number {n} sat on the mat, naïve déjà vu 漢字 🐈" for n in range(40)]
HELD_OUT = ["the cat sat", "漢字 🐈 and a long document that goes on over many rows of eight ids each", "x"]
LENGTH = 8

ARENA = """
import torch

class Experiment:
    def __init__(self, spec):
        self.bias = torch.zeros(spec.vocab_size)
    def load_state_dict(self, state):
        self.bias.copy_(state["model.bias"])
    def logits(self, tokens):
        return self.bias.expand(*tokens.shape, -1).contiguous()

def build(spec):
    return Experiment(spec)
"""


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    """Documents, tokenizer, packed validation rows and a model, as the earlier stages leave them."""
    write_documents(tmp_path / "train", TRAIN)
    write_documents(tmp_path / "val", HELD_OUT)
    tokenizer, _ = train(TRAIN, vocab_size=280, max_characters=10**6, max_document_characters=10**4, where="test")
    for name in ("tokenizer", "pack", "model"):
        (tmp_path / name).mkdir()
    tokenizer.save(tmp_path / "tokenizer")
    rows = {"sequence_len": LENGTH, "gaps": Gaps.PAD, "where": "val", "workers": 1}
    pack_split(HELD_OUT, tmp_path / "tokenizer", tmp_path / "pack", **rows)
    (tmp_path / "model/arena.py").write_text(ARENA)
    save_file({"model.bias": np.zeros(280, np.float32)}, tmp_path / "model/model.safetensors")
    spec = {"vocab_size": 280, "sequence_len": LENGTH, "dtype": "float32", "compile": False, "seed": 0}
    (tmp_path / "model/spec.json").write_text(json.dumps(spec))
    return Inputs(*(tmp_path / name for name in ("model", "pack", "tokenizer", "train", "val")))


def outputs_in(folder: Path) -> Outputs:
    return Outputs(
        *(folder / name for name in ("documents.parquet", "timing.json", "evaluate.json", "provenance.json"))
    )


@pytest.mark.slow
def test_evaluate_holds_the_device_while_it_judges(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    plain = evaluate.judge

    @contextmanager
    def exclusive(device: Device) -> Iterator[None]:
        told.append(f"takes {device.torch_name}")
        yield
        told.append("gives back")

    def judge(*arguments: Any, **keywords: Any) -> Judgement:
        told.append("judges")
        return plain(*arguments, **keywords)

    monkeypatch.setattr(evaluate, "exclusive", exclusive)
    monkeypatch.setattr(evaluate, "judge", judge)
    run(EvaluateParams(), inputs, outputs_in(tmp_path / "out"))
    assert told == [f"takes {resolve_device().torch_name}", "judges", "gives back"]


@pytest.mark.slow
def test_evaluate_twice_writes_the_same_bytes_and_counts_every_byte(inputs: Inputs, tmp_path: Path) -> None:
    digests = []
    for number in (1, 2):
        outputs = outputs_in(tmp_path / f"out {number}")
        run(EvaluateParams(), inputs, outputs)
        digests.append([hashlib.sha256(path.read_bytes()).hexdigest() for path in (outputs.documents, outputs.metrics)])
    assert digests[0] == digests[1]
    metrics = metrics_table.read(outputs.metrics)
    table = pq.read_table(outputs.documents).to_pandas()
    assert table["bytes"].tolist() == [len(text.encode()) for text in HELD_OUT]
    assert metrics["val_bpb"] == pytest.approx(metrics["tokens"] * math.log2(280) / metrics["bytes"], rel=1e-9)
    assert metrics["gain_over_ngram"] == metrics["ngram_bpb"] - metrics["val_bpb"]
    assert table["ngram_nats"].sum() / math.log(2) / metrics["bytes"] == pytest.approx(metrics["ngram_bpb"])
    assert "tokens_per_s" in json.loads(outputs.timing.read_text())


@pytest.mark.slow
def test_evaluate_of_other_documents_than_were_packed_is_an_input_error(inputs: Inputs, tmp_path: Path) -> None:
    write_documents(inputs.documents, [*HELD_OUT[:2], "xyz"])
    with pytest.raises(InputError, match="are not those that were packed"):
        run(EvaluateParams(), inputs, outputs_in(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_evaluate_of_refused_model_writes_nothing(inputs: Inputs, tmp_path: Path) -> None:
    save_file({"model.bias": np.full(280, np.nan, np.float32)}, inputs.model / "model.safetensors")
    with pytest.raises(Refused, match="non-finite logits"):
        run(EvaluateParams(), inputs, outputs_in(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
