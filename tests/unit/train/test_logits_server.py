"""One logits server by hand: its answers, its manners with shared memory, and its end."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import save_file

from ratchet.train import candidate as candidate_module
from ratchet.train.candidate import Candidate, Deadline, Piece, Question, shared_slots
from ratchet.train.refusal import Reason, Refused

VOCAB, ROWS, LENGTH = 16, 3, 10
TABLE = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(0))
TOKENS = np.random.default_rng(0).integers(0, VOCAB, (ROWS, LENGTH)).astype(np.int32)

ARENA = """
import torch

class Experiment:
    def __init__(self, spec):
        self.table = torch.zeros(spec.vocab_size, spec.vocab_size, dtype=getattr(torch, spec.dtype))
    def load_state_dict(self, state):
        self.table.copy_(state["model.table"])
    def logits(self, tokens):
        assert tokens.dtype == torch.int64 and not torch.is_grad_enabled()
        return self.table[tokens]

def build(spec):
    return Experiment(spec)
"""


@pytest.fixture(params=["bfloat16"])
def model(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    (tmp_path / "arena.py").write_text(ARENA)
    save_file({"model.table": TABLE}, tmp_path / "model.safetensors")
    spec = {"vocab_size": VOCAB, "sequence_len": LENGTH, "dtype": request.param, "compile": False, "seed": 0}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    return tmp_path


@pytest.fixture
def server(model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Candidate]:
    """A running server whose shared memory holds seven positions a slot: an answer of 30 comes in five pieces."""
    monkeypatch.setattr(candidate_module, "SLOT_BYTES", 7 * VOCAB * 4)
    question = Question(ROWS, LENGTH, VOCAB)
    with Candidate(model, question, device="cpu", threads=1, deadline=Deadline(60)) as running:
        running.connect()
        running.wait_ready()
        yield running


def next_pieces(server: Candidate, count: int) -> list[Piece]:
    """The next `count` pieces; their slots stay taken."""
    got: list[Piece] = []
    while len(got) < count:
        got += server.pieces()
    return got


@pytest.mark.slow
def test_server_answers_float32_pieces_and_never_writes_a_slot_that_is_read(server: Candidate) -> None:
    truth = TABLE.bfloat16()[torch.from_numpy(TOKENS).long()].float().view(-1, VOCAB)
    server.ask(TOKENS)
    server.ask(TOKENS[::-1].copy())
    held = next_pieces(server, 2)
    copies = [piece.logits.clone() for piece in held]
    time.sleep(0.3)  # both slots are held: the server waits, though it has more to say
    assert [(piece.first, piece.logits.size(0)) for piece in held] == [(0, 7), (7, 7)]
    for piece, copy in zip(held, copies, strict=True):
        assert torch.equal(piece.logits, copy)
        assert torch.equal(copy, truth[piece.first : piece.first + 7])
        server.free(piece)
    rest: list[tuple[int, int]] = []
    while server.open:
        for piece in server.pieces():
            rest.append((piece.first, piece.logits.size(0)))
            server.free(piece)
    assert rest == [(14, 7), (21, 7), (28, 2), (0, 7), (7, 7), (14, 7), (21, 7), (28, 2)]


@pytest.mark.slow
def test_server_whose_judge_is_gone_ends_by_itself(server: Candidate) -> None:
    process = psutil.Process(server._process.pid)
    assert server._channel is not None
    server._channel.connection.close()
    server._channel = None
    assert process.wait(10) == 0


@pytest.mark.slow
def test_close_kills_the_whole_session_and_leaves_no_file(server: Candidate) -> None:
    folder, process = server._folder, psutil.Process(server._process.pid)
    assert os.getsid(process.pid) == process.pid
    server.close()
    assert not process.is_running()
    assert not folder.exists()
    server.close = lambda: None


@pytest.mark.slow
def test_model_that_does_not_load_is_refused_with_its_last_words(model: Path) -> None:
    (model / "arena.py").write_text(ARENA.replace('state["model.table"]', 'state["model.missing"]'))
    question = Question(ROWS, LENGTH, VOCAB)
    with Candidate(model, question, device="cpu", threads=1, deadline=Deadline(60)) as running:
        running.connect()
        with pytest.raises(Refused, match=r"exit code 1 .*KeyError: 'model.missing'") as refusal:
            running.wait_ready()
    assert refusal.value.reason is Reason.EXITED


def test_shared_memory_cannot_change_its_size() -> None:
    descriptor, views = shared_slots(Question(2, 3, 4))
    for size in (0, 1 << 20):
        with pytest.raises(OSError, match="Operation not permitted"):
            os.ftruncate(descriptor, size)
    assert [tuple(view.shape) for view in views] == [(6, 4), (6, 4)]
    os.close(descriptor)


def test_piece_is_bounded_by_the_chunk_size_at_any_vocabulary() -> None:
    for vocab in (16, 8192, 50_304, 4_000_000):
        positions = Question(8, 2048, vocab).positions
        assert positions >= 1
        assert positions == 1 or positions * vocab * 4 <= 64 * 1024 * 1024


def test_deadline_that_has_passed_refuses() -> None:
    with pytest.raises(Refused, match="no end within 0 s"):
        Deadline(0.0).left()


def test_server_that_has_complained_stays_to_be_heard_while_the_judge_still_asks(model: Path) -> None:
    (model / "arena.py").write_text(ARENA.replace("return self.table[tokens]", "return 1.7"))
    with Candidate(model, Question(ROWS, LENGTH, VOCAB), device="cpu", threads=1, deadline=Deadline(60)) as running:
        running.connect()
        running.wait_ready()
        running.ask(TOKENS)
        time.sleep(1.0)  # by now it has complained; gone, it would be found with "exit code 0" by the next question
        running.ask(TOKENS)
        with pytest.raises(Refused) as refusal:
            list(running.pieces())
    assert refusal.value.reason is Reason.WRONG_SHAPE
