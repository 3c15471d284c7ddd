"""The judge's side of one candidate process: start it, hand it token ids, read its pieces, end it and all it started.

Makes the socket and the shared memory, trusts nothing that comes back, and turns every way to fail into a `Refused`
with its reason. Refuses to know scores, and never imports the arena.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import numpy as np
import torch
from torch import Tensor

import ratchet
from ratchet.settings import child_environment
from ratchet.train.refusal import Reason, Refused
from ratchet.train.wire import VERSION, Channel, ClosedError, Kind, MalformedError, Message

KEPT_ENVIRONMENT = ("CUDA_VISIBLE_DEVICES", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "TMPDIR", "TZ")
"""All that a candidate sees of this process' environment: no key, no token, no home."""

SLOTS = 2
SLOT_BYTES = 8 * 1024 * 1024
"""One piece of logits: two fit into a 32 MiB cache beside the candidate's own; the design's bound is 64 MiB."""

MAX_SAID_BYTES = 64 * 1024
"""The longest message a candidate may send; its logits never travel on the socket."""

EXIT_GRACE_S = 5.0
POLL_S = 0.1


class Deadline:
    """A point in time that judging may not pass."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s, self.at = limit_s, monotonic() + limit_s

    def left(self) -> float:
        """Seconds to go. Raises Refused once there are none."""
        left = self.at - monotonic()
        if left <= 0:
            raise Refused(
                Reason.TIMED_OUT,
                f"no end within {self.limit_s:g} s",
                "make `logits` faster or raise evaluate.limit_s in params.yaml",
            )
        return left


@dataclass(frozen=True)
class Question:
    """The shape that every answer of a candidate must have: `rows` x `length` ids in, times `vocab_size` logits out."""

    rows: int
    length: int
    vocab_size: int

    @property
    def positions(self) -> int:
        """Positions of one piece: what fits into SLOT_BYTES, at least one, at most the whole answer."""
        return max(1, min(SLOT_BYTES // (4 * self.vocab_size), self.rows * self.length))


@dataclass(frozen=True)
class Piece:
    """Logits [n, V] of the flattened positions `first` … `first + n` of the oldest open question, in shared memory.

    The candidate can still write there: copy before looking twice.
    """

    slot: int
    first: int
    logits: Tensor


class Candidate:
    """One running logits server. Use as a context manager: leaving it kills the process and its whole session."""

    def __init__(self, model: Path, question: Question, *, device: str, threads: int, deadline: Deadline) -> None:
        self.question, self.deadline = question, deadline
        self.open: deque[int] = deque()  # positions still to come of each question asked, oldest first
        self._slots_out: set[int] = set()
        self._folder = Path(tempfile.mkdtemp(prefix="ratchet-judge-"))
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self._folder / "socket"))
        self._listener.listen(1)
        self._memory, self._views = shared_slots(question)
        self._channel: Channel | None = None
        self._process = self._start(model, device, threads)

    def _start(self, model: Path, device: str, threads: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", "ratchet.train.logits_server", "--socket", str(self._folder / "socket"),
                   "--model", str(model.resolve()), "--device", device, "--threads", str(threads)]  # fmt: skip
        environment = {name: value for name, value in child_environment().items() if name in KEPT_ENVIRONMENT}
        package_root = Path(ratchet.__file__).resolve().parent.parent
        environment |= {"PYTHONPATH": str(package_root), "OMP_NUM_THREADS": str(threads)}
        with (self._folder / "said").open("wb") as said:
            return subprocess.Popen(
                command,
                cwd=self._folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    def connect(self) -> None:
        """Wait until the process has called; give it its memory and the shape of questions."""
        while self._channel is None:
            self._listener.settimeout(min(POLL_S, self.deadline.left()))
            with suppress(TimeoutError):
                connection, _ = self._listener.accept()
                self._channel = Channel(connection, max_payload=MAX_SAID_BYTES)
            if self._channel is None and self._process.poll() is not None:
                raise self._exited()
        question = self.question
        hello = {"version": VERSION, "rows": question.rows, "length": question.length, "slots": SLOTS,
                 "vocab_size": question.vocab_size, "positions": question.positions}  # fmt: skip
        self._send(Message.of_json(Kind.HELLO, hello), descriptors=(self._memory,))

    def wait_ready(self) -> None:
        """Wait until the model is loaded. Raises Refused when it cannot be."""
        while True:
            for message in self._receive():
                if message.kind is Kind.READY:
                    return
                raise self._complaint(message)

    def ask(self, tokens_BT: np.ndarray) -> None:
        """Ask for the logits of int ids [rows, length]; answers come in the order of the questions."""
        self._send(Message(Kind.ASK, (len(self.open), 0, 0, 0), np.ascontiguousarray(tokens_BT, dtype="<i4").tobytes()))
        self.open.append(0)

    def pieces(self) -> Iterator[Piece]:
        """The pieces that have come by now (blocks for the first bytes). Give each slot back with `free`."""
        for message in self._receive():
            if message.kind is not Kind.PIECE:
                raise self._complaint(message)
            _, slot, first, count = message.numbers
            whole = self.question.rows * self.question.length
            expected = self.open[0] if self.open else whole
            if slot >= SLOTS or slot in self._slots_out or first != expected or not 0 < count <= min(
                self.question.positions, whole - first
            ):  # fmt: skip
                raise self._protocol(f"a piece of {count} positions at {first} in slot {slot}; {expected} is next")
            self._slots_out.add(slot)
            self.open[0] += count
            yield Piece(slot, first, self._views[slot][:count])
            if self.open[0] == whole:
                self.open.popleft()

    def free(self, piece: Piece) -> None:
        """The judge has done with the piece; its slot may be written again."""
        self._slots_out.discard(piece.slot)
        self._send(Message(Kind.FREE, (piece.slot, 0, 0, 0)))

    def fileno(self) -> int:
        """For selectors: readable when `pieces` will not block."""
        assert self._channel is not None, "connect comes first"
        return self._channel.fileno()

    def _send(self, message: Message, *, descriptors: tuple[int, ...] = ()) -> None:
        assert self._channel is not None, "connect comes first"
        self._channel.connection.settimeout(self.deadline.left())
        try:
            self._channel.send(message, descriptors=descriptors)
        except ClosedError:
            raise self._exited() from None
        except TimeoutError:
            self.deadline.left()

    def _receive(self) -> Iterator[Message]:
        assert self._channel is not None, "connect comes first"
        self._channel.connection.settimeout(self.deadline.left())
        try:
            yield from self._channel.receive()
        except ClosedError:
            raise self._exited() from None
        except MalformedError as error:
            raise self._protocol(str(error)) from None
        except TimeoutError:
            self.deadline.left()

    def _complaint(self, message: Message) -> Refused:
        """What the server itself says against the model it serves."""
        if message.kind is not Kind.FAIL:
            return self._protocol(f"an unexpected {message.kind.name}")
        try:
            said = message.json()
            return Refused(Reason(said["reason"]), printable(str(said["detail"])), "return float logits [B, T, V]")
        except (MalformedError, KeyError, ValueError):
            return self._protocol("a complaint that is none")

    def _protocol(self, what: str) -> Refused:
        return Refused(Reason.PROTOCOL, what, "leave sockets and processes to ratchet/train/logits_server.py")

    def _exited(self) -> Refused:
        """The process is gone, or on its way: say how it went and its last words."""
        try:
            code = self._process.wait(EXIT_GRACE_S)
        except subprocess.TimeoutExpired:
            return self._protocol("the connection was closed by a process that lives on")
        how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        words = self.last_words()
        return Refused(
            Reason.EXITED, f"{how} before all was answered{': ' * bool(words)}{words}", "mend arena.py or the model"
        )

    def last_words(self) -> str:
        """The last line the process printed, at most 200 characters."""
        with (self._folder / "said").open("rb") as said:
            said.seek(max(0, said.seek(0, os.SEEK_END) - 4096))
            lines = [line for line in said.read().decode(errors="replace").splitlines() if line.strip()]
        return printable(lines[-1].strip())[:200] if lines else ""

    def close(self) -> None:
        """Kill the process' whole session and remove what was made for it."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._channel is not None:
            self._channel.connection.close()
        self._listener.close()
        os.close(self._memory)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Candidate:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def shared_slots(question: Question) -> tuple[int, list[Tensor]]:
    """Anonymous shared memory (its descriptor) and its slots as float32 [positions, V], read here.

    Sealed against change of size: a candidate that shrank it would end the judge by SIGBUS.
    """
    size = SLOTS * question.positions * question.vocab_size * 4
    descriptor = os.memfd_create("ratchet-logits", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    memory = mmap.mmap(descriptor, size)
    whole = torch.frombuffer(memory, dtype=torch.float32).view(SLOTS, question.positions, question.vocab_size)
    return descriptor, list(whole)


def printable(text: str) -> str:
    """`text` without control characters, so that a candidate's words cannot steer a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)[:400]
