"""What is asked of a language model and what it answers: requests, replies, what they took, and how a call can fail.

Refuses to know who answers: an endpoint, a record or a script.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from ratchet.core.errors import InfrastructureError, RatchetError


class Role(StrEnum):
    """Who said a message, as chat endpoints spell it."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


@dataclass(frozen=True)
class Message:
    role: Role
    text: str


@dataclass(frozen=True, kw_only=True)
class Request:
    """One call, whole: all of it goes into its key.

    Either `messages` (chat format) or `prompt` (completion format). None leaves a sampling parameter to the endpoint.
    `sample` tells several answers to one and the same request apart; `extra` are further fields of the endpoint, such
    as `{"reasoning_effort": "low"}`. `max_tokens` bounds the reply, reasoning included.
    """

    model: str
    max_tokens: int
    messages: tuple[Message, ...] = ()
    prompt: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    sample: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if bool(self.messages) == (self.prompt is not None):
            raise ValueError("a request has either messages or a prompt")

    def fields(self) -> dict[str, Any]:
        """The request as JSON, every field named."""
        messages = [{"role": str(message.role), "content": message.text} for message in self.messages]
        return {
            "model": self.model,
            "messages": messages or None,
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.seed,
            "stop": list(self.stop),
            "sample": self.sample,
            "extra": dict(self.extra),
        }

    def key(self) -> str:
        """SHA-256 of the whole request, in hex."""
        return key_of(self.fields())

    def text(self) -> str:
        """All that the model reads."""
        return self.prompt if self.prompt is not None else "\n".join(message.text for message in self.messages)


def key_of(fields: Mapping[str, Any]) -> str:
    """SHA-256 of a request's fields, in hex."""
    text = json.dumps(fields, sort_keys=True, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Spent:
    """What calls took. `money` is in the currency of the prices."""

    calls: int = 0
    tokens: int = 0
    money: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.calls + other.calls, self.tokens + other.tokens, self.money + other.money)


class Finish(StrEnum):
    """Why a reply ended."""

    STOP = "stop"
    LENGTH = "length"
    """At max_tokens: the text is cut off."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer. Token counts are the endpoint's, None when it gave none; `spent` includes attempts that came to
    nothing but were paid for."""

    text: str
    finish: Finish = Finish.STOP
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    spent: Spent = field(default_factory=Spent)


class Trouble(StrEnum):
    """How a call fails. The value is what a message says of it."""

    OUTAGE = "the endpoint does not work"
    RATE_LIMIT = "the endpoint asks to slow down"
    QUOTA = "the account's quota is used up"
    TIMEOUT = "no whole answer in time"
    MALFORMED = "the answer is not what the protocol says"
    EMPTY = "the answer is empty"
    REFUSED = "the model or its filter refused"


RETRIED = frozenset(Trouble) - {Trouble.QUOTA}
"""What another attempt may mend."""


class CallError(InfrastructureError):
    """A call that gave no answer. Exit code 3; never a score.

    `trouble` says how, `retry_after_s` when the endpoint named a wait, and `spent` what was paid all the same.
    """

    def __init__(
        self,
        where: object,
        trouble: Trouble,
        detail: str,
        do: str,
        *,
        retry_after_s: float | None = None,
        prompt_tokens: int | None = None,
        completion_tokens: int | None = None,
        spent: Spent | None = None,
    ) -> None:
        super().__init__(where, f"{trouble}: {detail}" if detail else str(trouble), do)
        self.trouble, self.detail, self.retry_after_s = trouble, detail, retry_after_s
        self.prompt_tokens, self.completion_tokens = prompt_tokens, completion_tokens
        self.spent = spent or Spent()

    @property
    def billed(self) -> bool:
        """Whether the endpoint answered, so that the attempt counts as a call."""
        return self.trouble in (Trouble.MALFORMED, Trouble.EMPTY, Trouble.REFUSED)


class BudgetSpent(RatchetError):  # noqa: N818  (an end more than an error)
    """The next call could pass a cap of the budget, so it was not made. The loop ends here, cleanly."""


def charge(error: BaseException, spent: Spent) -> None:
    """Note on `error` what the call that it ends took."""
    error.spent = spent  # pyright: ignore[reportAttributeAccessIssue]


def charged(error: BaseException) -> Spent:
    """What the call that `error` ended took: attempts that were paid for and gave no answer."""
    return getattr(error, "spent", Spent())


class Provider(Protocol):
    """Something that answers requests, from several threads at once."""

    def complete(self, request: Request) -> Reply:
        """The answer. Raises CallError, BudgetSpent, or InputError when the request itself is at fault."""
        ...
