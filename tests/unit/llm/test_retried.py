"""Which failures are asked again, how long it waits, and what is said when nothing helps."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet.core.errors import InputError
from ratchet.llm.client import BudgetSpent, CallError, Reply, Request, Spent, Trouble, charged
from ratchet.llm.retried import LONGEST_WAIT_S, Retried
from ratchet.llm.scripted import Line, Scripted


def request(prompt: str = "x") -> Request:
    return Request(model="m", max_tokens=5, prompt=prompt)


def failing(trouble: Trouble, **more: Any) -> CallError:
    return CallError("there", trouble, "made up", "wait", **more)


def retried(*script: Line, attempts: int = 4) -> tuple[Retried, Scripted, list[float]]:
    waits: list[float] = []
    scripted = Scripted(script)
    return Retried(scripted, attempts, 1.0, waits.append), scripted, waits


@pytest.mark.parametrize("trouble", sorted(set(Trouble) - {Trouble.QUOTA}))
def test_retry_of_what_may_pass_waits_longer_each_time(trouble: Trouble) -> None:
    provider, scripted, waits = retried(failing(trouble), failing(trouble), failing(trouble), "at last")
    assert provider.complete(request()).text == "at last"
    assert len(scripted.asked) == 4
    assert [0.5 * 2**n <= wait <= 1.5 * 2**n for n, wait in enumerate(waits)] == [True] * 3


def test_retry_waits_repeat_and_differ_between_requests() -> None:
    seen: list[list[float]] = []
    for prompt in ("one", "one", "other"):
        provider, _, waits = retried(failing(Trouble.OUTAGE), "fine")
        provider.complete(request(prompt))
        seen.append(waits)
    assert seen[0] == seen[1] != seen[2]


def test_retry_gives_up_with_the_cause_and_all_that_was_paid() -> None:
    paid = failing(Trouble.EMPTY, spent=Spent(1, 10, 0.5))
    provider, scripted, _ = retried(paid, failing(Trouble.OUTAGE), paid, paid)
    with pytest.raises(CallError) as caught:
        provider.complete(request())
    assert str(caught.value) == "there: the answer is empty: made up (attempt 4 of 4); wait"
    assert (caught.value.spent, caught.value.exit_code) == (Spent(3, 30, 1.5), 3)
    assert len(scripted.asked) == 4


def test_retry_adds_what_failed_attempts_cost_to_the_reply() -> None:
    answer = Reply(text="fine", spent=Spent(1, 15, 0.1))
    provider, _, _ = retried(failing(Trouble.EMPTY, spent=Spent(1, 10, 0.5)), answer)
    assert provider.complete(request()).spent == Spent(2, 25, 0.6)


def test_retry_keeps_the_wait_that_the_endpoint_asks_for() -> None:
    provider, _, waits = retried(failing(Trouble.RATE_LIMIT, retry_after_s=90.0), "fine")
    provider.complete(request())
    assert waits == [90.0]


def test_retry_after_an_hour_is_not_waited_for_but_said() -> None:
    provider, scripted, waits = retried(failing(Trouble.RATE_LIMIT, retry_after_s=3600.0), "fine")
    with pytest.raises(CallError, match="it asks to wait 3600 s"):
        provider.complete(request())
    assert (waits, len(scripted.asked)) == ([], 1)


def test_retry_of_a_used_up_quota_or_a_wrong_request_is_not_tried() -> None:
    for error in (failing(Trouble.QUOTA), InputError("there", "wrong", "mend it")):
        provider, scripted, waits = retried(error, "fine")
        with pytest.raises(type(error)):
            provider.complete(request())
        assert (waits, len(scripted.asked)) == ([], 1)


def test_retry_wait_is_bounded() -> None:
    provider, _, waits = retried(*[failing(Trouble.OUTAGE)] * 11, "fine", attempts=12)
    provider.complete(request())
    assert max(waits) <= 1.5 * LONGEST_WAIT_S


@pytest.mark.parametrize("end", [BudgetSpent("budget", "used up", "stop"), InputError("there", "wrong", "mend it")])
def test_retry_that_ends_otherwise_still_says_what_its_attempts_cost(end: Exception) -> None:
    provider, _, _ = retried(failing(Trouble.EMPTY, spent=Spent(1, 10, 0.5)), end)
    with pytest.raises(type(end)) as caught:
        provider.complete(request())
    assert charged(caught.value) == Spent(1, 10, 0.5)


def test_retry_interrupted_while_it_waits_says_what_its_attempts_cost() -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    provider = Retried(Scripted([failing(Trouble.EMPTY, spent=Spent(1, 10, 0.5))]), 4, 1.0, interrupt)
    with pytest.raises(KeyboardInterrupt) as caught:
        provider.complete(request())
    assert charged(caught.value) == Spent(1, 10, 0.5)
