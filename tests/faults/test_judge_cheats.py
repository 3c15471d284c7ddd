"""Small arenas that misbehave in `logits`, against the real judge: each is refused for its reason, or gains nothing.

Where nothing hangs on how the candidates are held, they are forks: two starts of Python with torch a test are saved.
What the catalogue (cheats/) has as a whole train.py is not repeated here.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from safetensors.numpy import save_file

from forked import ForkSandbox
from ratchet.data.packing import PackedSplit, Pieces
from ratchet.sandbox.job import Sandbox
from ratchet.sandbox.process import ProcessSandbox
from ratchet.train.device import Device
from ratchet.train.judge import Judgement, judge
from ratchet.train.refusal import Reason, Refused

VOCAB, LENGTH, ROWS = 24, 16, 12
CPU = Device("cpu", 0, "test", "test", 1)
TOKEN_BYTES = np.array([0] + [1 + i % 3 for i in range(VOCAB - 1)], dtype=np.int32)

ARENA = """
import torch, time, os, sys

class Experiment:
    def __init__(self, spec):
        self.spec = spec
        self.table = torch.zeros(spec.vocab_size, spec.vocab_size)
        self.calls = 0
    def load_state_dict(self, state):
        self.table.copy_(state["model.table"])
    def honest(self, tokens):
        return self.table[tokens]
    def logits(self, tokens):
        self.calls += 1
        {body}

def build(spec):
    return Experiment(spec)
"""


def model_folder(folder: Path, body: str, *, dtype: str = "float32") -> Path:
    """A model whose `logits` is `body`, over a bigram table with fixed weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "arena.py").write_text(ARENA.replace("{body}", body.replace("\n", "\n        ")))
    table = np.random.default_rng(1).normal(size=(VOCAB, VOCAB)).astype(np.float32)
    save_file({"model.table": table}, folder / "model.safetensors")
    spec = {"vocab_size": VOCAB, "sequence_len": LENGTH, "dtype": dtype, "compile": False, "seed": 0}
    (folder / "spec.json").write_text(json.dumps(spec))
    return folder


@pytest.fixture
def split(tmp_path: Path) -> PackedSplit:
    """Twelve rows of one document each, random ids; every target belongs to its row's document."""
    rows = np.random.default_rng(0).integers(1, VOCAB, size=(ROWS, LENGTH + 1)).astype(np.uint16)
    numbers = np.arange(ROWS)
    pieces = Pieces(numbers, numbers, np.zeros(ROWS, np.int64), np.full(ROWS, LENGTH))
    return PackedSplit(tmp_path, {"sequence_len": LENGTH, "vocab_size": VOCAB}, rows, pieces)


def judged(
    tmp_path: Path, split: PackedSplit, body: str, *, limit_s: float = 60.0, sandbox: Sandbox | None = None
) -> Judgement:
    folder, held = model_folder(tmp_path / "model", body), sandbox or ProcessSandbox()
    return judge(folder, split, TOKEN_BYTES, device=CPU, batch_rows=3, sandbox=held, limit_s=limit_s)


FAR_LOOK_AHEAD = """
logits = self.honest(tokens)
return logits + logits.mean(dim=1, keepdim=True)
"""
CACHED_LOOK_AHEAD = """
# peeks, and remembers what it said of every prefix, to say it again when it is probed
self.memory = getattr(self, "memory", {})
logits = self.honest(tokens).clone()
for row in range(tokens.size(0)):
    for t in range(tokens.size(1) - 1):
        prefix = tuple(tokens[row, : t + 1].tolist())
        logits[row, t, tokens[row, t + 1]] += 5.0
        if t > 3:
            logits[row, t] = self.memory.setdefault(prefix, logits[row, t].clone())
return logits
"""
REFUSED = {
    "look ahead by a mean over the row": (FAR_LOOK_AHEAD, Reason.LOOK_AHEAD),
    "look ahead with a memory": (CACHED_LOOK_AHEAD, Reason.LOOK_AHEAD),
    "counts its calls": ("return self.honest(tokens) * (1 + 0.01 * self.calls)", Reason.CHANGING_ANSWERS),
    "random per logit": ("return self.honest(tokens) + torch.rand(24)", Reason.CHANGING_ANSWERS),
    "process id": ("return self.honest(tokens) * (1 + os.getpid() % 1000)", Reason.CHANGING_ANSWERS),
    "minus infinity for all but one": (
        "out = torch.full_like(self.honest(tokens), -torch.inf)\nout[..., 0] = 0\nreturn out",
        Reason.NON_FINITE,
    ),
    "transposed": ("return self.honest(tokens).transpose(1, 2)", Reason.WRONG_SHAPE),
    "no tensor": ("return 1.7", Reason.WRONG_SHAPE),
    "whole numbers": ("return self.honest(tokens).long()", Reason.WRONG_DTYPE),
    "raises": ("raise RuntimeError('no\\x1b[2J logits')", Reason.EXITED),
    "exits with 0": ("if self.calls == 2: os._exit(0)\nreturn self.honest(tokens)", Reason.EXITED),
    "exits with a code of no signal": ("os._exit(170)", Reason.EXITED),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_judge_of_cheating_arena_refuses_with_its_reason(name: str, tmp_path: Path, split: PackedSplit) -> None:
    body, reason = REFUSED[name]
    with pytest.raises(Refused) as refusal:
        judged(tmp_path, split, body, sandbox=ForkSandbox())
    assert refusal.value.reason is reason
    assert "\n" not in str(refusal.value)
    assert "\x1b" not in str(refusal.value)


@pytest.mark.slow
def test_judge_of_hanging_arena_refuses_in_time_and_leaves_no_process(tmp_path: Path, split: PackedSplit) -> None:
    started = time.monotonic()
    body = "import subprocess\nsubprocess.Popen(['sleep', '1234567'])\nwhile True: time.sleep(1)"
    with pytest.raises(Refused) as refusal:
        judged(tmp_path, split, body, limit_s=15.0)
    assert refusal.value.reason is Reason.TIMED_OUT
    assert time.monotonic() - started < 25
    time.sleep(0.2)
    assert not [p for p in psutil.process_iter(["cmdline"]) if "1234567" in (p.info["cmdline"] or [])]


@pytest.mark.slow
def test_judge_of_arena_that_prints_without_end_refuses_and_bounds_the_disk(tmp_path: Path, split: PackedSplit) -> None:
    with pytest.raises(Refused) as refusal:
        judged(tmp_path, split, "while True: sys.stdout.buffer.write(b'x' * 65536)")
    assert refusal.value.reason is Reason.TOO_MUCH_OUTPUT


@pytest.mark.slow
def test_judge_of_log_probabilities_that_sum_to_more_than_one_gives_no_gain(tmp_path: Path, split: PackedSplit) -> None:
    body = "return torch.zeros_like(self.honest(tokens)) + 100.0 + torch.rand(1)"
    claimed = judged(tmp_path, split, body, sandbox=ForkSandbox())
    tokens, size = claimed.documents["tokens"].sum(), claimed.documents["bytes"].sum()
    assert claimed.val_bpb == pytest.approx(np.log2(VOCAB) * tokens / size, rel=1e-7)


@pytest.mark.slow
def test_judge_of_arena_that_speaks_the_protocol_itself_is_refused(tmp_path: Path, split: PackedSplit) -> None:
    body = """
import gc, socket
from ratchet.train.wire import Channel, Kind, Message
channel = next(thing for thing in gc.get_objects() if isinstance(thing, Channel))
channel.send(Message(Kind.PIECE, (0, 7, 0, 1000)))
time.sleep(60)
"""
    with pytest.raises(Refused) as refusal:
        judged(tmp_path, split, body.strip())
    assert refusal.value.reason is Reason.PROTOCOL


@pytest.mark.slow
def test_judge_survives_arena_that_shrinks_the_shared_memory(tmp_path: Path, split: PackedSplit) -> None:
    body = """
for name in os.listdir('/proc/self/fd'):
    try: os.ftruncate(int(name), 0)
    except OSError: pass
return self.honest(tokens)
"""
    assert judged(tmp_path, split, body.strip(), sandbox=ForkSandbox()).probe.verdict == "clean"


@pytest.mark.slow
def test_judge_hides_keys_and_never_runs_the_arena_itself(
    tmp_path: Path, split: PackedSplit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "planted")
    seen = tmp_path / "seen"
    body = f"print(os.getpid(), dict(os.environ), file=open({str(seen)!r}, 'a'))\nreturn self.honest(tokens)"
    judged(tmp_path, split, body)
    lines = seen.read_text().splitlines()
    pids = {int(line.split()[0]) for line in lines}
    assert len(pids) == 2
    assert os.getpid() not in pids
    assert "planted" not in seen.read_text()
