"""The language between the judge and a candidate's logits server: small messages on one Unix socket.

Every message is a fixed header (kind, four numbers, payload length) and a payload; logits never travel here, they lie
in shared memory that the judge made. Knows bytes and sockets; refuses to know torch, models and scores.
docs/judge.md has the table of messages.
"""

from __future__ import annotations

import array
import json
import socket
import struct
from collections.abc import Iterator
from enum import Enum
from typing import Any, NamedTuple

HEADER = struct.Struct("<4s5I")
VERSION = 1
MAX_PAYLOAD = 64 * 1024 * 1024
RECEIVE_BYTES = 1024 * 1024


class Kind(Enum):
    """What a message says; the numbers it carries are named in docs/judge.md."""

    HELLO = b"HELO"
    READY = b"REDY"
    ASK = b"ASK_"
    PIECE = b"PIEC"
    FREE = b"FREE"
    FAIL = b"FAIL"


class Message(NamedTuple):
    """One message. `numbers` are four unsigned 32-bit integers whose meaning depends on `kind`; unused ones are 0."""

    kind: Kind
    numbers: tuple[int, int, int, int] = (0, 0, 0, 0)
    payload: bytes = b""

    @classmethod
    def of_json(cls, kind: Kind, value: dict[str, Any]) -> Message:
        """A message whose payload is a JSON object."""
        return cls(kind, payload=json.dumps(value).encode())

    def json(self) -> dict[str, Any]:
        """The payload as a JSON object. Raises MalformedError when it is none."""
        try:
            value = json.loads(self.payload)
        except ValueError as error:
            raise MalformedError(f"payload of {self.kind.name} is no JSON: {error}") from None
        if not isinstance(value, dict):
            raise MalformedError(f"payload of {self.kind.name} is a {type(value).__name__}, not an object")
        return value


class MalformedError(Exception):
    """The bytes are no message of this protocol."""


class ClosedError(Exception):
    """The other side is gone."""


class Channel:
    """Whole messages over a connected stream socket. `max_payload` bounds what the other side can make us hold."""

    def __init__(self, connection: socket.socket, *, max_payload: int = MAX_PAYLOAD) -> None:
        self.connection, self.max_payload = connection, max_payload
        self._received = bytearray()

    def fileno(self) -> int:
        """For selectors."""
        return self.connection.fileno()

    def send(self, message: Message, *, descriptors: tuple[int, ...] = ()) -> None:
        """Send all of `message`, with open file descriptors if given. Raises ClosedError."""
        data = HEADER.pack(message.kind.value, *message.numbers, len(message.payload)) + message.payload
        try:
            if descriptors:
                sent = socket.send_fds(self.connection, [data], list(descriptors))
                data = data[sent:]
            self.connection.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ClosedError from error

    def receive(self) -> Iterator[Message]:
        """Read once from the socket and yield the messages that are whole by now. Raises ClosedError at the end."""
        try:
            data = self.connection.recv(RECEIVE_BYTES)
        except ConnectionResetError as error:
            raise ClosedError from error
        if not data:
            raise ClosedError
        self._received += data
        while (message := self._take()) is not None:
            yield message

    def receive_with_descriptors(self, count: int) -> tuple[Message, list[int]]:
        """Block for one message and the `count` file descriptors sent with it."""
        item = array.array("i").itemsize
        data, ancillary, _, _ = self.connection.recvmsg(RECEIVE_BYTES, socket.CMSG_SPACE(count * item))
        descriptors = array.array("i")
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors.frombytes(content[: len(content) - len(content) % item])
        self._received += data
        while (message := self._take()) is None:
            data = self.connection.recv(RECEIVE_BYTES)
            if not data:
                raise ClosedError
            self._received += data
        return message, list(descriptors)

    def _take(self) -> Message | None:
        if len(self._received) < HEADER.size:
            return None
        name, *numbers, length = HEADER.unpack_from(self._received)
        if length > self.max_payload:
            raise MalformedError(f"a payload of {length} bytes, at most {self.max_payload} are taken")
        try:
            kind = Kind(name)
        except ValueError:
            raise MalformedError(f"unknown message {name!r}") from None
        end = HEADER.size + length
        if len(self._received) < end:
            return None
        payload = bytes(self._received[HEADER.size : end])
        del self._received[:end]
        first, second, third, fourth = numbers
        return Message(kind, (first, second, third, fourth), payload)
