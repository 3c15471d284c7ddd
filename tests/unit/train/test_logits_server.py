"""One logits server by hand: its answers, its manners with shared memory, and its end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import save_file

from ratchet.core.errors import InfrastructureError, InputError
from ratchet.sandbox.job import End, Ended, Isolation, Job, Kind
from ratchet.sandbox.process import ProcessSandbox
from ratchet.train import candidate as candidate_module
from ratchet.train.candidate import Candidate, Deadline, Piece, Question, refusal, shared_slots
from ratchet.train.refusal import Reason, Refused

VOCAB, ROWS, LENGTH = 16, 3, 10
TABLE = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(0))
TOKENS = np.random.default_rng(0).integers(0, VOCAB, (ROWS, LENGTH)).astype(np.int32)

ARENA = """
import os, torch

class Experiment:
    def __init__(self, spec):
        self.table = torch.zeros(spec.vocab_size, spec.vocab_size, dtype=getattr(torch, spec.dtype))
    def load_state_dict(self, state):
        self.table.copy_(state["model.table"])
    def logits(self, tokens):
        assert tokens.dtype == torch.int64 and not torch.is_grad_enabled()
        return self.table[tokens]

def build(spec):
    with open("pid", "w") as file:  # the working folder is its own
        file.write(str(os.getpid()))
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
    with Candidate(
        model, question, device="cpu", threads=1, deadline=Deadline(60), sandbox=ProcessSandbox()
    ) as running:
        running.connect()
        running.wait_ready()
        yield running


def next_pieces(server: Candidate, count: int) -> list[Piece]:
    """The next `count` pieces; their slots stay taken."""
    got: list[Piece] = []
    while len(got) < count:
        got += server.pieces()
    return got


def process_of(server: Candidate) -> psutil.Process:
    return psutil.Process(int((server._folder / "own" / "pid").read_text()))


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
    process = process_of(server)
    assert server._channel is not None
    server._channel.connection.close()
    server._channel = None
    process.wait(10)
    assert server._running is not None
    assert server._running.wait().exit_code == 0


@pytest.mark.slow
def test_close_kills_the_whole_session_and_leaves_no_file(server: Candidate) -> None:
    folder, process = server._folder, process_of(server)
    assert os.getsid(process.pid) == process.pid
    server.close()
    assert not process.is_running()
    assert not folder.exists()
    server.close = lambda: None


@pytest.mark.slow
def test_model_that_does_not_load_is_refused_with_its_last_words(model: Path) -> None:
    (model / "arena.py").write_text(ARENA.replace('state["model.table"]', 'state["model.missing"]'))
    question = Question(ROWS, LENGTH, VOCAB)
    with Candidate(
        model, question, device="cpu", threads=1, deadline=Deadline(60), sandbox=ProcessSandbox()
    ) as running:
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
    with Candidate(
        model, Question(ROWS, LENGTH, VOCAB), device="cpu", threads=1, deadline=Deadline(60), sandbox=ProcessSandbox()
    ) as running:
        running.connect()
        running.wait_ready()
        running.ask(TOKENS)
        time.sleep(1.0)  # by now it has complained; gone, it would be found with "exit code 0" by the next question
        running.ask(TOKENS)
        with pytest.raises(Refused) as refusal:
            list(running.pieces())
    assert refusal.value.reason is Reason.WRONG_SHAPE


@pytest.mark.parametrize(
    ("ended", "reason", "says"),
    [
        (Ended(End.DONE, 0, 1.0), Reason.EXITED, "exit code 0 before all was answered"),
        (Ended(End.CRASHED, 1, 1.0, ("first", "KeyError: 'x'")), Reason.EXITED, "exit code 1 before .*: KeyError: 'x'"),
        (Ended(End.CRASHED, 139, 1.0), Reason.EXITED, "signal SIGSEGV before"),
        (Ended(End.TIMED_OUT, 137, 5.0, (), "no end within 5 s"), Reason.TIMED_OUT, "no end within 5 s before"),
        (Ended(End.OUT_OF_MEMORY, 137, 1.0, (), "over 64 MiB"), Reason.OUT_OF_MEMORY, "over 64 MiB before"),
        (Ended(End.TOO_MUCH_OUTPUT, 137, 1.0), Reason.TOO_MUCH_OUTPUT, "signal SIGKILL before"),
    ],
)
def test_refusal_names_how_the_sandbox_says_it_ended(ended: Ended, reason: Reason, says: str) -> None:
    refused = refusal(ended)
    assert refused.reason is reason
    assert re.search(says, str(refused))


def test_refusal_of_a_candidate_that_others_stopped_blames_the_world() -> None:
    with pytest.raises(InfrastructureError, match="stopped from outside"):
        refusal(Ended(End.STOPPED, 143, 1.0))


class Dead:
    """A sandbox whose engine has just died."""

    kind: Kind = "container"
    isolation: Isolation = "container"

    def start(self, job: Job) -> NoReturn:
        raise InfrastructureError("engine", "does not answer", "start it")


def test_candidate_whose_sandbox_is_dead_blames_the_world_and_leaves_no_file(model: Path) -> None:
    candidate = Candidate(
        model, Question(ROWS, LENGTH, VOCAB), device="cpu", threads=1, deadline=Deadline(60), sandbox=Dead()
    )
    with pytest.raises(InfrastructureError, match="does not answer"):
        candidate.__enter__()
    assert not candidate._folder.exists()


def held() -> set[tuple[int, int]]:
    """Device and inode of whatever this process holds open: each socket and each piece of shared memory has its own."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that listed the folder is closed
            stat = descriptor.stat()
            found.add((stat.st_dev, stat.st_ino))
    return found


def test_candidate_that_cannot_be_asked_leaves_no_folder_socket_or_memory(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory() as temp:  # not tmp_path: a socket's path has 108 bytes at most
        monkeypatch.setattr("tempfile.tempdir", temp)
        before = held()
        with pytest.raises(Refused, match="no end within 0 s"):
            Candidate(
                model, Question(ROWS, LENGTH, VOCAB), device="cpu", threads=1, deadline=Deadline(0.0), sandbox=Dead()
            )
        assert not list(Path(temp).iterdir())
    assert held() <= before  # what an earlier test left may be collected meanwhile


def test_candidate_under_a_long_folder_for_temporary_files_is_refused_in_one_line(
    model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (long := tmp_path / ("x" * 100)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with pytest.raises(InputError, match=r"makes a socket's path of .* bytes, .*; set TMPDIR to a shorter one"):
        Candidate(
            model,
            Question(ROWS, LENGTH, VOCAB),
            device="cpu",
            threads=1,
            deadline=Deadline(5),
            sandbox=ProcessSandbox(),
        )
    assert list(long.iterdir()) == []
