"""Replies that can be read, or none: what a reader refuses counts as a failed attempt, is asked again and never kept.

Stands right before the endpoint, inside meter, attempts and record: a reply in prose is paid for, asked for again, and
not replayed for ever. Refuses to know what a reply should hold.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from ratchet.llm.client import CallError, Finish, Provider, Reply, Request, Trouble

T = TypeVar("T")
Reader = Callable[[str], T]
"""What a reply's text says. Raises UnreadableError."""


class UnreadableError(Exception):
    """Why a text is not what was asked for."""


class Readable:
    """`provider` whose replies must satisfy the reader that `ask` was given for the request."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._readers: dict[str, Reader[object]] = {}
        self._lock = threading.Lock()

    def expect(self, request: Request, reader: Reader[object]) -> None:
        """Read the reply to `request` with `reader` when it comes."""
        with self._lock:
            self._readers[request.key()] = reader

    def complete(self, request: Request) -> Reply:
        """The provider's reply. Raises CallError for one that its reader refuses, with its tokens for the meter."""
        reply = self._provider.complete(request)
        reader = self._readers.get(request.key())
        if reader is None:
            return reply
        try:
            reader(reply.text)
        except UnreadableError as error:
            cut = f", cut off at max_tokens {request.max_tokens}" if reply.finish is Finish.LENGTH else ""
            raise CallError(
                request.model,
                Trouble.MALFORMED,
                f"{error}{cut}: {reply.text[:80]!r}",
                "use a model that keeps to the format, or raise max_tokens",
                prompt_tokens=reply.prompt_tokens,
                completion_tokens=reply.completion_tokens,
            ) from None
        return reply
