"""One attempt at an endpoint: what is sent, what comes back, and every way to fail told apart. Over real HTTP."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import SecretStr

import misbehaving_llm as bad
from misbehaving_llm import Act, MisbehavingLlm
from ratchet.core.errors import InputError
from ratchet.llm.client import CallError, Finish, Message, Request, Role, Trouble
from ratchet.llm.openai_compatible import OpenAICompatible

KEY = "sk-planted-0123456789"


@pytest.fixture
def server() -> Iterator[MisbehavingLlm]:
    with MisbehavingLlm() as server:
        yield server


def provider(server: MisbehavingLlm, timeout_s: float = 20.0, **more: Any) -> OpenAICompatible:
    return OpenAICompatible(server.url, SecretStr(KEY), timeout_s, **more)


def chat(**more: Any) -> Request:
    return Request(model="m", max_tokens=50, messages=(Message(Role.USER, "Привет"),), **more)


def test_endpoint_chat_request_carries_every_field_and_the_key(server: MisbehavingLlm) -> None:
    request = chat(temperature=0.5, top_p=0.9, seed=3, stop=("END",), extra={"reasoning_effort": "low"})
    reply = provider(server).complete(request)
    assert (reply.text, reply.finish, reply.prompt_tokens, reply.completion_tokens) == ("fine", Finish.STOP, 10, 5)
    assert server.asked == [
        {
            "model": "m",
            "messages": [{"role": "user", "content": "Привет"}],
            "max_tokens": 50,
            "temperature": 0.5,
            "top_p": 0.9,
            "seed": 3,
            "stop": ["END"],
            "reasoning_effort": "low",
        }
    ]
    assert server.keys == [f"Bearer {KEY}"]


def test_endpoint_completion_request_has_a_prompt_and_leaves_out_what_is_not_set(server: MisbehavingLlm) -> None:
    given = provider(server, token_field="max_completion_tokens")
    assert given.complete(Request(model="m", max_tokens=9, prompt="Once")).text == "fine"
    assert server.asked == [{"model": "m", "prompt": "Once", "max_completion_tokens": 9}]
    assert server.paths == ["/v1/completions"]


def test_endpoint_reply_that_was_cut_off_says_so(server: MisbehavingLlm) -> None:
    server.plan = [Act(text="half a sent", finish="length", usage=False)]
    reply = provider(server).complete(chat())
    assert (reply.finish, reply.prompt_tokens) == (Finish.LENGTH, None)


@pytest.mark.parametrize(
    ("act", "trouble", "said"),
    [
        (bad.OUTAGE, Trouble.OUTAGE, "status 503"),
        (bad.error(500), Trouble.OUTAGE, "status 500"),
        (Act(body=b'{"error": {"message": "upstream"}}'), Trouble.OUTAGE, "upstream"),
        (bad.DROPS, Trouble.OUTAGE, "RemoteProtocolError"),
        (bad.SLOW_DOWN, Trouble.RATE_LIMIT, "status 429"),
        (bad.NO_QUOTA, Trouble.QUOTA, "no money"),
        (bad.TRUNCATED, Trouble.MALFORMED, "it is not JSON"),
        (bad.PAGE, Trouble.MALFORMED, "Bad gateway"),
        (bad.NOT_THE_PROTOCOL, Trouble.MALFORMED, "no choice with a text"),
        (Act(body=b"[]"), Trouble.MALFORMED, "no JSON object"),
        (bad.EMPTY, Trouble.EMPTY, ""),
        (Act(text=" \n", finish="length"), Trouble.EMPTY, "before the first word"),
        (bad.REFUSAL, Trouble.REFUSED, "I will not."),
        (bad.FILTERED, Trouble.REFUSED, "content filter"),
        (bad.error(400, "policy", "content_filter"), Trouble.REFUSED, "policy"),
    ],
)
def test_endpoint_that_fails_is_told_apart(server: MisbehavingLlm, act: Act, trouble: Trouble, said: str) -> None:
    server.plan = [act]
    with pytest.raises(CallError) as caught:
        provider(server).complete(chat())
    assert caught.value.trouble is trouble
    assert said in str(caught.value)
    assert server.url in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3
    assert len(server.asked) == 1  # the package below does not retry on its own


@pytest.mark.parametrize("act", [bad.HANGS, bad.DRIPS])
def test_endpoint_that_is_slow_ends_at_the_time_limit(server: MisbehavingLlm, act: Act) -> None:
    server.plan = [act]
    begun = time.monotonic()
    with pytest.raises(CallError) as caught:
        provider(server, timeout_s=0.5).complete(chat())
    assert caught.value.trouble is Trouble.TIMEOUT
    assert time.monotonic() - begun < 2.5


def test_endpoint_that_is_not_there_is_an_outage() -> None:
    with MisbehavingLlm() as gone:
        pass
    with pytest.raises(CallError) as caught:
        provider(gone).complete(chat())
    assert caught.value.trouble is Trouble.OUTAGE


def test_endpoint_wait_is_read_as_seconds_or_as_a_date(server: MisbehavingLlm) -> None:
    server.plan = [bad.error(429, retry_after="7"), bad.error(503, retry_after="Fri, 31 Dec 2100 23:59:59 GMT")]
    server.plan += [bad.error(429, retry_after="soon"), bad.error(429)]
    waits: list[float | None] = []
    for _ in range(4):
        with pytest.raises(CallError) as caught:
            provider(server).complete(chat())
        waits.append(caught.value.retry_after_s)
    assert waits[0] == 7.0
    assert waits[1] is not None
    assert waits[1] > 1e9
    assert waits[2:] == [None, None]


@pytest.mark.parametrize(
    ("act", "do"),
    [
        (bad.error(401, f"Incorrect API key provided: {KEY}"), "set the key"),
        (bad.error(404, "no such model"), "check the base address, and that it serves the model 'm'"),
        (bad.error(400, "context length exceeded"), "change the request"),
    ],
)
def test_endpoint_that_says_the_request_is_wrong_is_not_asked_again(server: MisbehavingLlm, act: Act, do: str) -> None:
    server.plan = [act]
    with pytest.raises(InputError) as caught:
        provider(server).complete(chat())
    assert do in str(caught.value)
    assert KEY not in str(caught.value)


def test_endpoint_that_repeats_the_key_does_not_get_it_into_a_reply_or_an_error(server: MisbehavingLlm) -> None:
    server.plan = [Act(text=f"your key is {KEY}"), bad.error(503, f"key {KEY} is busy")]
    assert provider(server).complete(chat()).text == "your key is [key]"
    with pytest.raises(CallError) as caught:
        provider(server).complete(chat())
    assert KEY not in str(caught.value)
    assert KEY not in repr(provider(server).__dict__)
