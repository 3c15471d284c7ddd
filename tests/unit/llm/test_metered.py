"""The meter: what calls took, and the call that could pass a cap is not made."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ratchet.llm.client import BudgetSpent, CallError, Message, Reply, Request, Role, Spent, Trouble
from ratchet.llm.metered import MESSAGE_TOKENS, CallBudget, Metered, Price, worst_case
from ratchet.llm.scripted import Line, Scripted

PRICE = Price(prompt=2.0, completion=10.0)
ANSWER = Reply(text="fine", prompt_tokens=100, completion_tokens=20)


def request(prompt: str = "x" * 984, max_tokens: int = 100) -> Request:
    return Request(model="m", max_tokens=max_tokens, prompt=prompt)


def metered(*script: Line, spent: Spent | None = None, **budget: Any) -> tuple[Metered, Scripted]:
    scripted = Scripted(script or [ANSWER] * 100)
    return Metered(scripted, PRICE, CallBudget(**budget), spent), scripted


def test_meter_counts_what_the_endpoint_says() -> None:
    meter, _ = metered()
    assert meter.complete(request()).spent == Spent(1, 120, pytest.approx(0.0004))
    meter.complete(request())
    assert meter.spent == Spent(2, 240, pytest.approx(0.0008))


def test_meter_worst_case_is_a_token_a_byte_and_the_whole_reply() -> None:
    assert worst_case(request(), PRICE) == Spent(1, 1100, pytest.approx(0.003))
    messages = (Message(Role.USER, "ы" * 10), Message(Role.ASSISTANT, "x"))
    most = worst_case(Request(model="m", max_tokens=7, messages=messages), PRICE)
    assert most.tokens == 22 + 3 * MESSAGE_TOKENS + 7


@pytest.mark.parametrize(
    ("budget", "made", "said"),
    [
        ({"calls": 3}, 3, "3 of 3 calls are used and the next call can take 1"),
        ({"tokens": 1340}, 3, "360 of 1340 tokens are used and the next call can take 1100"),
        ({"money": 0.0039}, 3, "0.0012 of 0.0039 money are used and the next call can take 0.003"),
        ({"money": 0.0}, 0, "0 of 0 money"),
    ],
)
def test_meter_makes_no_call_that_could_pass_a_cap(budget: dict[str, Any], made: int, said: str) -> None:
    meter, scripted = metered(**budget)
    for _ in range(made):
        meter.complete(request())
    with pytest.raises(BudgetSpent) as caught:
        meter.complete(request())
    assert len(scripted.asked) == made
    assert said in str(caught.value)


def test_meter_starts_from_what_the_run_has_spent_before() -> None:
    meter, scripted = metered(spent=Spent(5, 0, 0.0), calls=6)
    meter.complete(request())
    with pytest.raises(BudgetSpent):
        meter.complete(request())
    assert len(scripted.asked) == 1


def test_meter_assumes_the_worst_of_an_endpoint_that_does_not_count() -> None:
    meter, _ = metered(Reply(text="fine"))
    assert meter.complete(request()).spent.tokens == 1100


def test_meter_counts_a_failure_that_is_billed_and_no_other() -> None:
    refused = CallError("there", Trouble.REFUSED, "", "", prompt_tokens=100, completion_tokens=1)
    meter, _ = metered(refused, CallError("there", Trouble.OUTAGE, "", ""), RuntimeError("a bug"))
    for _ in range(2):
        with pytest.raises(CallError):
            meter.complete(request())
    with pytest.raises(RuntimeError):
        meter.complete(request())
    assert (meter.spent.calls, meter.spent.tokens, refused.spent.tokens) == (1, 101, 101)


def test_meter_with_threads_never_has_more_in_flight_than_the_cap_allows() -> None:
    at_once = threading.Barrier(4, timeout=10)

    def slowly(request: Request) -> Reply:
        at_once.wait()  # all four that the cap allows are in flight together
        return ANSWER

    scripted = Scripted(slowly)
    meter = Metered(scripted, PRICE, CallBudget(calls=4))

    def call(_: int) -> bool:
        try:
            meter.complete(request())
        except BudgetSpent:
            return False
        return True

    with ThreadPoolExecutor(12) as pool:
        assert sum(pool.map(call, range(12))) == 4
    assert (len(scripted.asked), meter.spent.calls) == (4, 4)
