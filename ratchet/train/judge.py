"""The sealed judge: bits per byte of a trained model on a split, measured from outside the model's process.

The candidate answers questions about token ids with logits (ratchet/train/candidate.py, logits_server.py); everything
else happens here: normalisation, byte lengths, the account of documents, the probes. Refuses to import the arena, to
know its batch size, and to give a number for a model that looks ahead, changes its answers, or does not answer.
docs/judge.md says what is measured and what is not held.
"""

from __future__ import annotations

import json
import secrets
import selectors
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pandas as pd
import torch

from ratchet.core.errors import InputError
from ratchet.data.packing import PackedSplit, Pieces
from ratchet.sandbox.job import Isolation, Sandbox
from ratchet.train import scoring
from ratchet.train.candidate import WATCH_S, Candidate, Deadline, Piece, Question
from ratchet.train.device import Device
from ratchet.train.probe import TOLERANCES, Again, Ask, Evidence, Look, Plan, make_plan

AHEAD = 2
"""Questions a candidate holds at once, so that it computes the next while the judge reduces the last."""


@dataclass(frozen=True)
class Probe:
    """What the probes found. `max_shift` is in nats of one target and depends on the secret; the rest does not."""

    rows: int
    repeated: int
    tolerance: float
    verdict: str
    max_shift: float


@dataclass(frozen=True)
class Judgement:
    """One judging. `documents` has the columns document, tokens, bytes, nats.

    `tokens_per_s` counts judged positions over `seconds`, the time from the first question to the last answer;
    `startup_seconds` is the time until both models were loaded.
    """

    val_bpb: float
    documents: pd.DataFrame
    probe: Probe
    tokens_per_s: float
    seconds: float
    startup_seconds: float
    isolation: Isolation


def judge(
    model: Path,
    split: PackedSplit,
    token_bytes: np.ndarray,
    *,
    device: Device,
    batch_rows: int,
    sandbox: Sandbox,
    memory_mb: int = 8192,
    probe_seed: int | None = None,
    limit_s: float = 3600.0,
) -> Judgement:
    """Judge the model folder `model` (arena.py, model.safetensors, spec.json) on every document of `split`.

    `token_bytes`: true byte length of each id, int [V], 0 for specials, which are not counted. `batch_rows`: rows asked
    at once. `sandbox` holds the model's two processes, `memory_mb` each. `probe_seed`: None draws a secret one.
    `limit_s`: seconds until the judging is given up, start included. Raises Refused (no number for this model: why),
    InputError (nothing to judge; model and split differ) or InfrastructureError (the sandbox failed, not the model).
    """
    deadline, started = Deadline(limit_s), monotonic()
    dtype, pieces = _check(model, split, token_bytes)
    rows, length = split.rows.shape[0], split.sequence_len
    question = Question(min(batch_rows, rows), length, split.vocab_size)
    plan = make_plan(rows, length, question.rows, secrets.randbits(128) if probe_seed is None else probe_seed)
    hearing = Hearing(split, scoring.Account(pieces, token_bytes, rows=rows, length=length), deadline, plan)
    with _candidates(model, question, device, deadline, sandbox, memory_mb) as candidates, _judge_threads(device):
        ready = monotonic()
        hearing.run(candidates)
        seconds = monotonic() - ready
    tolerance = TOLERANCES[dtype]
    max_shift = hearing.evidence.verdict(tolerance)
    documents = hearing.account.documents()
    return Judgement(
        val_bpb=scoring.bits_per_byte(float(documents["nats"].sum()), int(documents["bytes"].sum())),
        documents=documents,
        probe=Probe(plan.probed(Look.ALTERED), plan.probed(Look.REPEATED), tolerance.one, "clean", max_shift),
        tokens_per_s=rows * length / seconds,
        seconds=seconds,
        startup_seconds=ready - started,
        isolation=sandbox.isolation,
    )


def _check(model: Path, split: PackedSplit, token_bytes: np.ndarray) -> tuple[str, Pieces]:
    """The dtype of the model and the pieces of the split. Raises InputError unless all three are of one vocabulary."""
    missing = [name for name in ("arena.py", "model.safetensors", "spec.json") if not (model / name).is_file()]
    if missing:
        raise InputError(model, f"holds no {missing[0]}", "train a model: `dvc repro train`")
    if split.pieces is None or not len(split.pieces.row):
        raise InputError(split.folder, "has no documents to judge", "judge a validation or test split")
    spec = _read_spec(model / "spec.json")
    for what, size in (("the model", spec["vocab_size"]), ("token_bytes.npy", len(token_bytes))):
        if size != split.vocab_size:
            what = f"{what} has {size} ids, the split {split.vocab_size}"
            raise InputError("judge", what, "judge a model on the split of its own tokenizer")
    if spec["dtype"] not in TOLERANCES:
        known = " or ".join(TOLERANCES)
        raise InputError(model / "spec.json", f"dtype {spec['dtype']!r} has no measured tolerance", f"use {known}")
    return spec["dtype"], split.pieces


def _read_spec(path: Path) -> dict[str, Any]:
    """What a model was built for. Raises InputError for a file that does not say it."""
    try:
        spec = json.loads(path.read_text(encoding="utf-8"))
        return {name: spec[name] for name in ("vocab_size", "sequence_len", "dtype", "seed")}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(path, f"describes no model ({error!r})", "write it anew: `dvc repro --force train`") from None


@contextmanager
def _candidates(
    model: Path, question: Question, device: Device, deadline: Deadline, sandbox: Sandbox, memory_mb: int
) -> Iterator[list[Candidate]]:
    """Two fresh processes with the model loaded, started side by side; gone afterwards."""
    threads = max(1, device.threads // 2)
    with ExitStack() as running:
        both = [
            running.enter_context(
                Candidate(
                    model,
                    question,
                    device=device.torch_name,
                    threads=threads,
                    deadline=deadline,
                    sandbox=sandbox,
                    memory_mb=memory_mb,
                )
            )
            for _ in range(2)
        ]
        for candidate in both:
            candidate.connect()
        for candidate in both:
            candidate.wait_ready()
        yield both


@contextmanager
def _judge_threads(device: Device) -> Iterator[None]:
    """Few threads here while candidates compute on the CPU (they need 15 times the work), all when they do not."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, device.threads // 8) if device.kind == "cpu" else device.threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass
class Answer:
    """One question's answer as it comes in."""

    ask: Ask
    targets: torch.Tensor
    nats: torch.Tensor


class Interview:
    """One candidate and what it is still to be asked."""

    def __init__(self, candidate: Candidate, asks: deque[Ask]) -> None:
        self.candidate, self.asks = candidate, asks
        self.answers: deque[Answer] = deque()

    def ask_on(self, split: PackedSplit) -> None:
        """Ask until the candidate holds AHEAD questions or there are none."""
        while self.asks and len(self.answers) < AHEAD:
            ask = self.asks.popleft()
            targets_N = torch.from_numpy(ask.targets(split.rows)).flatten()
            self.answers.append(Answer(ask, targets_N, torch.empty(targets_N.numel(), dtype=torch.float64)))
            self.candidate.ask(ask.inputs(split.rows, split.vocab_size))

    def take(self, piece: Piece) -> Answer | None:
        """Score one piece; the whole answer when this was its last."""
        answer = self.answers[0]
        part = slice(piece.first, piece.first + piece.logits.size(0))
        answer.nats[part] = scoring.nats(piece.logits, answer.targets[part])
        self.candidate.free(piece)
        return self.answers.popleft() if part.stop == answer.targets.numel() else None


class Hearing:
    """Both candidates at once: every answer goes into the account or into the evidence."""

    def __init__(self, split: PackedSplit, account: scoring.Account, deadline: Deadline, plan: Plan) -> None:
        self.split, self.account, self.deadline, self.plan = split, account, deadline, plan
        self.evidence = Evidence()
        self._probed = plan.probed_rows()

    def run(self, candidates: list[Candidate]) -> None:
        """Ask both all that the plan holds for them, until everything is answered."""
        interviews = [
            Interview(candidate, deque(asks)) for candidate, asks in zip(candidates, self.plan.asks, strict=True)
        ]
        with selectors.DefaultSelector() as selector:
            for interview in interviews:
                interview.ask_on(self.split)
                selector.register(interview.candidate, selectors.EVENT_READ, interview)
            while any(interview.answers for interview in interviews):
                for key, _ in selector.select(min(WATCH_S, self.deadline.left())):
                    self._listen(key.data)
                for interview in interviews:
                    if interview.answers:  # one that has answered all may go
                        interview.candidate.watch()

    def _listen(self, interview: Interview) -> None:
        for piece in interview.candidate.pieces():
            answer = interview.take(piece)
            if answer is not None:
                interview.ask_on(self.split)
                self._enter(answer)

    def _enter(self, answer: Answer) -> None:
        ask, length = answer.ask, self.split.sequence_len
        nats_BT, targets_BT = (tensor.view(-1, length).numpy() for tensor in (answer.nats, answer.targets))
        for place, row in enumerate(ask.rows[: ask.used]):
            if ask.look is Look.JUDGED:
                self.account.enter(row, targets_BT[place], nats_BT[place])
                if row in self._probed:
                    self.evidence.first[row] = nats_BT[place].copy()
            else:
                end = ask.cuts[place] if ask.look is Look.ALTERED else length
                self.evidence.again.append(Again(ask.look, row, nats_BT[place, :end].copy()))
