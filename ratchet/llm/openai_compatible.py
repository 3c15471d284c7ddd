"""One attempt at any endpoint that speaks OpenAI's chat or completion protocol, each way to fail told apart.

Refuses to retry, to count and to record; the key goes to the endpoint and nowhere else.
"""

from __future__ import annotations

import json
import math
import time
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from pydantic import SecretStr

from ratchet.core.errors import InputError
from ratchet.llm.client import CallError, Finish, Reply, Request, Trouble
from ratchet.llm.untrusted import one_line

if TYPE_CHECKING:
    import httpx2
    import openai

CONNECT_S = 10.0
LARGEST_BYTES = 64 * 1024 * 1024
AGAIN = "try again later; what was answered is recorded and not paid again"
TokenField = Literal["max_tokens", "max_completion_tokens"]


class OpenAICompatible:
    """The endpoint at `base_url` (it ends before `/chat/completions`). `timeout_s` bounds a call to its last byte."""

    def __init__(
        self, base_url: str, key: SecretStr | None, timeout_s: float, token_field: TokenField = "max_tokens"
    ) -> None:
        self._base_url, self._key, self._timeout_s, self._token_field = base_url, key, timeout_s, token_field

    @cached_property
    def _client(self) -> openai.OpenAI:
        import openai

        key = self._key.get_secret_value() if self._key else "none"
        timeout = openai.Timeout(self._timeout_s, connect=min(CONNECT_S, self._timeout_s))
        return openai.OpenAI(base_url=self._base_url, api_key=key, max_retries=0, timeout=timeout)

    def complete(self, request: Request) -> Reply:
        """The answer. Raises CallError saying how the call failed, InputError when asking again cannot help."""
        import httpx2
        import openai

        try:
            answer = self._body(request)
        except (openai.APITimeoutError, httpx2.TimeoutException):
            raise self._failed(Trouble.TIMEOUT, f"{self._timeout_s:g} s") from None
        except openai.APIStatusError as error:
            raise self._status(error, request) from None
        except (openai.APIConnectionError, httpx2.HTTPError) as error:
            cause = error.__cause__ or error
            raise self._failed(Trouble.OUTAGE, f"{type(cause).__name__} {cause}") from None
        return self._reply(answer)

    def _body(self, request: Request) -> bytes:
        """The body of the answer, read against the clock: an endpoint that drips bytes never looks silent."""
        ends = time.monotonic() + self._timeout_s
        body = bytearray()
        with self._send(request) as response:
            for chunk in response.iter_bytes():
                body += chunk
                if time.monotonic() > ends:
                    raise self._failed(Trouble.TIMEOUT, f"{len(body)} bytes in {self._timeout_s:g} s")
                if len(body) > LARGEST_BYTES:
                    raise self._failed(Trouble.MALFORMED, f"it is longer than {LARGEST_BYTES} bytes")
        return bytes(body)

    def _send(self, request: Request) -> Any:
        fields = request.fields()
        named = ("model", "temperature", "top_p", "seed", "stop")
        body = {name: fields[name] for name in named if fields[name] not in (None, [])}
        body |= {self._token_field: request.max_tokens} | fields["extra"]
        chat, completions = self._client.chat.completions, self._client.completions
        model = body.pop("model")
        if request.messages:
            create = chat.with_streaming_response.create
            return create(model=model, messages=fields["messages"], extra_body=body)
        return completions.with_streaming_response.create(model=model, prompt=request.prompt or "", extra_body=body)

    def _reply(self, body: bytes) -> Reply:
        answer = self._parsed(body)
        counts = [_count(answer.get("usage"), name) for name in ("prompt_tokens", "completion_tokens")]

        def failed(trouble: Trouble, detail: str) -> CallError:
            return self._failed(trouble, detail, prompt_tokens=counts[0], completion_tokens=counts[1])

        try:
            choice = answer["choices"][0]
            message = choice.get("message") or {}
            text = _text(message.get("content") if "message" in choice else choice["text"])
            finish = choice.get("finish_reason")
        except (KeyError, IndexError, TypeError, AttributeError):
            raise failed(Trouble.MALFORMED, f"it has no choice with a text: {_start(body)}") from None
        if finish == "content_filter" or message.get("refusal"):
            raise failed(Trouble.REFUSED, str(message.get("refusal") or "content filter"))
        if not text.strip():
            cut = finish == "length"
            raise failed(Trouble.EMPTY, "max_tokens were used up before the first word" if cut else "")
        end = Finish.LENGTH if finish == "length" else Finish.STOP
        return Reply(text=self._scrubbed(text), finish=end, prompt_tokens=counts[0], completion_tokens=counts[1])

    def _parsed(self, body: bytes) -> dict[str, Any]:
        try:
            answer: Any = json.loads(body)
        except ValueError as error:
            raise self._failed(Trouble.MALFORMED, f"it is not JSON ({error}): {_start(body)}") from None
        if isinstance(answer, dict) and answer.get("error"):  # some gateways say so under status 200
            raise self._failed(Trouble.OUTAGE, str(answer["error"]))
        if not isinstance(answer, dict):
            raise self._failed(Trouble.MALFORMED, f"it is no JSON object: {_start(body)}")
        return answer

    def _status(self, error: openai.APIStatusError, request: Request) -> CallError | InputError:
        """What a status other than 2xx means."""
        said = f"status {error.status_code}: {error.message}"
        code = str(error.code or "")
        wait_s = _retry_after_s(error.response)
        match error.status_code:
            case 429 if code == "insufficient_quota":
                return self._failed(Trouble.QUOTA, said)
            case 429:
                return self._failed(Trouble.RATE_LIMIT, said, retry_after_s=wait_s)
            case 408 | 409 | 425 | 500 | 501 | 502 | 503 | 504 | 507 | 508 | 520 | 521 | 522 | 523 | 524 | 529:
                return self._failed(Trouble.OUTAGE, said, retry_after_s=wait_s)
            case 401 | 403:
                do = "set the key of this endpoint (docs/llm.md)"
            case 404:
                do = f"check the base address, and that it serves the model {request.model!r}"
            case _ if "content_filter" in (code, str(error.type or "")):
                return self._failed(Trouble.REFUSED, said)
            case _:
                do = f"change the request to {request.model!r}: its length, or fields this endpoint lacks (docs/llm.md)"
        return InputError(self._base_url, self._scrubbed(one_line(said)), do)

    def _failed(self, trouble: Trouble, detail: str, **more: Any) -> CallError:
        return CallError(self._base_url, trouble, self._scrubbed(one_line(detail)), AGAIN, **more)

    def _scrubbed(self, text: str) -> str:
        """`text` without the key, which endpoints like to repeat when they refuse it."""
        key = self._key.get_secret_value() if self._key else ""
        return text.replace(key, "[key]") if key else text


def _text(content: Any) -> str:
    """A message's content; some endpoints give it in parts. None = said nothing."""
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content)
    if content is not None and not isinstance(content, str):
        raise TypeError("content is no text")
    return content or ""


def _count(usage: Any, name: str) -> int | None:
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else None


def _start(body: bytes) -> str:
    return repr(body[:80].decode(errors="replace"))


def _retry_after_s(response: httpx2.Response) -> float | None:
    """Seconds that the header Retry-After asks for, given as a number or as a date."""
    value = response.headers.get("retry-after")
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError):
            return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None
