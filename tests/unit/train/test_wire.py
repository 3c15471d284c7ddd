"""Messages between judge and logits server over a real socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.train.wire import Channel, ClosedError, Kind, MalformedError, Message

NUMBER = st.integers(0, 2**32 - 1)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


@settings(max_examples=50, deadline=None)
@given(
    messages=st.lists(
        st.builds(
            Message,
            st.sampled_from(Kind),
            st.tuples(NUMBER, NUMBER, NUMBER, NUMBER),
            st.binary(max_size=50),
        ),
        max_size=5,
    ),
    step=st.integers(1, 40),
)
def test_messages_cut_anywhere_arrive_whole(messages: list[Message], step: int) -> None:
    left, right = socket.socketpair()
    with left, right:
        sender, probe = Channel(left), Channel(right)
        for message in messages:
            sender.send(message)
        left.shutdown(socket.SHUT_WR)
        data = b"".join(iter(lambda: right.recv(4096), b""))
    outer, inner = socket.socketpair()
    with outer, inner:
        receiver, got = Channel(inner), []
        for first in range(0, len(data), step):
            outer.sendall(data[first : first + step])
            got += receiver.receive()
    assert got == messages
    assert probe.max_payload > 0


def test_receive_after_the_other_side_closed_raises_closed(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[0].close()
    with pytest.raises(ClosedError):
        list(Channel(pair[1]).receive())


@pytest.mark.parametrize("data", [b"nope" + bytes(20), b"PIEC" + bytes(16) + b"\xff\xff\xff\x7f"])
def test_receive_of_what_is_no_message_raises_malformed(data: bytes, pair: tuple[socket.socket, socket.socket]) -> None:
    pair[0].sendall(data)
    with pytest.raises(MalformedError):
        list(Channel(pair[1], max_payload=1000).receive())


@pytest.mark.parametrize("payload", [b"", b"[1]", b"\xff"])
def test_json_of_what_is_no_object_raises_malformed(payload: bytes) -> None:
    with pytest.raises(MalformedError):
        Message(Kind.FAIL, payload=payload).json()


def test_descriptor_sent_along_is_the_same_file(pair: tuple[socket.socket, socket.socket]) -> None:
    descriptor = os.memfd_create("shared")
    os.write(descriptor, b"text")
    Channel(pair[0]).send(Message.of_json(Kind.HELLO, {"a": 1}), descriptors=(descriptor,))
    message, received = Channel(pair[1]).receive_with_descriptors(1)
    assert message.json() == {"a": 1}
    assert os.pread(received[0], 4, 0) == b"text"
    for each in (descriptor, *received):
        os.close(each)
