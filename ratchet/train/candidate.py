"""The judge's side of one candidate process: have it started in a sandbox, hand it token ids, read its pieces, end it.

Makes the socket and the shared memory, trusts nothing that comes back, and turns every way to fail into a `Refused`
with its reason. Refuses to know scores and how the process is held, and never imports the arena.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import socket
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import torch
from torch import Tensor

from ratchet.core.errors import InfrastructureError, InputError
from ratchet.sandbox.job import End, Ended, Job, Limits, Running, Sandbox, how_it_exited
from ratchet.sandbox.words import printable
from ratchet.train.refusal import Reason, Refused
from ratchet.train.wire import VERSION, Channel, ClosedError, Kind, MalformedError, Message

SLOTS = 2
SLOT_BYTES = 8 * 1024 * 1024
"""One piece of logits: two fit into a 32 MiB cache beside the candidate's own; the design's bound is 64 MiB."""

MAX_SAID_BYTES = 64 * 1024
"""The longest message a candidate may send; its logits never travel on the socket."""

FILE_MB, LOG_MB, PROCESSES = 64, 4, 256
"""What an honest logits server never needs: big files, much to say, many processes (threads count)."""

EXIT_GRACE_S = 30.0
"""What a process that has closed its connection may take to end: its memory is given back on a loaded machine."""
POLL_S = 0.1
SOCKET_PATH_BYTES = 107
"""What the kernel takes of a socket's path (unix(7))."""
WATCH_S = 0.5
"""Between two looks at a process from which nothing is heard: a look at a container costs some milliseconds."""


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


def _short(path: Path) -> str:
    """`path` for a socket. Raises InputError when the kernel takes none so long."""
    size = len(os.fsencode(path))
    if size > SOCKET_PATH_BYTES:
        what = f"the folder for temporary files makes a socket's path of {size} bytes, {path}: {SOCKET_PATH_BYTES} go"
        raise InputError("judge", what, "set TMPDIR to a shorter one")
    return str(path)


class Candidate:
    """One logits server in `sandbox`. Use as a context manager: entering starts it, leaving ends it and all it started.

    It sees its model's folder, the code, and a private folder with the socket; `memory_mb` bounds what it may hold.
    Raises InfrastructureError when the sandbox fails, which says nothing about the candidate.
    """

    def __init__(
        self,
        model: Path,
        question: Question,
        *,
        device: str,
        threads: int,
        deadline: Deadline,
        sandbox: Sandbox,
        memory_mb: int = 8192,
    ) -> None:
        self.question, self.deadline = question, deadline
        self.open: deque[int] = deque()  # positions still to come of each question asked, oldest first
        self._sandbox, self._memory_mb = sandbox, memory_mb
        self._slots_out: set[int] = set()
        self._channel: Channel | None = None
        self._running: Running | None = None
        self._watched = 0.0
        with ExitStack() as made:
            self._folder = Path(tempfile.mkdtemp(prefix="ratchet-judge-")).resolve()
            made.callback(shutil.rmtree, self._folder, ignore_errors=True)
            (self._folder / "own").mkdir()
            self._listener = made.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            self._listener.bind(_short(self._folder / "own" / "socket"))
            self._listener.listen(1)
            self._memory, self._views = shared_slots(question)
            made.callback(os.close, self._memory)
            self._job = self._make_job(model.resolve(), device, threads)
            self._made = made.pop_all()  # kept until it is closed; what fails on the way leaves nothing

    def _make_job(self, model: Path, device: str, threads: int) -> Job:
        own = self._folder / "own"
        links = tuple(file.resolve() for file in sorted(model.iterdir()) if file.is_symlink())  # into DVC's cache
        return Job(
            name=self._folder.name,
            argv=("python", "-P", "-m", "ratchet.train.logits_server", "--socket", str(own / "socket"),
                  "--model", str(model), "--device", device, "--threads", str(threads)),
            folder=own,
            log=self._folder / "said",
            limits=Limits(seconds=self.deadline.left(), memory_mb=self._memory_mb, processes=PROCESSES,
                          file_mb=FILE_MB, log_mb=LOG_MB),
            reads=(model, *links),
            writes=(own,),
            environment={"OMP_NUM_THREADS": str(threads)},
            device=device,
        )  # fmt: skip

    def connect(self) -> None:
        """Wait until the process has called; give it its memory and the shape of questions."""
        while self._channel is None:
            self._listener.settimeout(min(POLL_S, self.deadline.left()))
            with suppress(TimeoutError):
                connection, _ = self._listener.accept()
                self._channel = Channel(connection, max_payload=MAX_SAID_BYTES)
            self.watch()
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

    def watch(self) -> None:
        """Look at the process, at most every WATCH_S. Raises Refused when it has ended."""
        if monotonic() - self._watched >= WATCH_S:
            self._watched = monotonic()
            if ended := self._started().poll():
                raise refusal(ended)

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
        """What has come by now; waits a while for the first bytes, with an eye on the process."""
        assert self._channel is not None, "connect comes first"
        self._channel.connection.settimeout(min(WATCH_S, self.deadline.left()))
        try:
            yield from self._channel.receive()
        except ClosedError:
            raise self._exited() from None
        except MalformedError as error:
            raise self._protocol(str(error)) from None
        except TimeoutError:
            self.watch()

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
        until = monotonic() + EXIT_GRACE_S
        while monotonic() < until:
            if ended := self._started().poll():
                return refusal(ended)
            sleep(POLL_S / 5)
        return self._protocol("the connection was closed by a process that lives on")

    def _started(self) -> Running:
        assert self._running is not None, "entering the `with` starts it"
        return self._running

    def close(self) -> None:
        """End the process and all that it started, and remove what was made for it."""
        running, self._running = self._running, None
        try:
            if running:
                with running:
                    running.stop(grace_s=0.0)
        finally:
            if self._channel is not None:
                self._channel.connection.close()
            self._made.close()

    def __enter__(self) -> Candidate:
        try:
            self._running = self._sandbox.start(self._job)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


REASONS = {
    End.TIMED_OUT: Reason.TIMED_OUT,
    End.OUT_OF_MEMORY: Reason.OUT_OF_MEMORY,
    End.TOO_MUCH_OUTPUT: Reason.TOO_MUCH_OUTPUT,
}
"""The ends by a limit. Every other end before the last answer is `exited`."""


def refusal(ended: Ended) -> Refused:
    """Why a process that has ended gives no number. Raises InfrastructureError when somebody else has ended it."""
    if ended.end is End.STOPPED:
        raise InfrastructureError("judge", "the candidate was stopped from outside", "judge again")
    words = ended.last[-1][:200] if ended.last else ""
    detail = f"{ended.detail or how_it_exited(ended.exit_code)} before all was answered{': ' * bool(words)}{words}"
    return Refused(REASONS.get(ended.end, Reason.EXITED), detail, "mend arena.py or the model")


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
