"""Counts what calls take, and refuses one that could pass the budget.

Knows prices and caps; refuses to know what is asked.
"""

from __future__ import annotations

import dataclasses
import threading

from pydantic import Field

from ratchet.llm.client import BudgetSpent, CallError, Provider, Reply, Request, Spent
from ratchet.params import Params

MESSAGE_TOKENS = 16
"""What a chat template may add to each message, and to the whole."""
MILLION = 1_000_000


class Price(Params):
    """What a model costs, in money per million tokens."""

    prompt: float = Field(0.0, ge=0, strict=False, description="money per million tokens of the prompt")
    completion: float = Field(0.0, ge=0, strict=False, description="money per million tokens of the reply")

    def money(self, prompt_tokens: int, completion_tokens: int) -> float:
        """The price of one call."""
        return (prompt_tokens * self.prompt + completion_tokens * self.completion) / MILLION


class CallBudget(Params):
    """Caps on what a run may spend on one model; null = no cap. The call that could pass one is not made."""

    calls: int | None = Field(None, ge=0, description="answers, repairs and empty ones included")
    tokens: int | None = Field(None, ge=0, description="tokens of prompts and replies together")
    money: float | None = Field(None, ge=0, strict=False, description="money, in the currency of the price")


def worst_case(request: Request, price: Price) -> Spent:
    """The most that `request` can take: a token is at least one byte of UTF-8, and the reply is at most max_tokens."""
    prompt = len(request.text().encode("utf-8", "replace")) + MESSAGE_TOKENS * (len(request.messages) + 1)
    return Spent(1, prompt + request.max_tokens, price.money(prompt, request.max_tokens))


class Metered:
    """`provider` with a meter and a budget. `spent`: what the same run has spent before, of its record."""

    def __init__(self, provider: Provider, price: Price, budget: CallBudget, spent: Spent | None = None) -> None:
        self._provider, self._price, self._budget = provider, price, budget
        self._spent, self._reserved = spent or Spent(), Spent()
        self._lock = threading.Lock()

    @property
    def spent(self) -> Spent:
        """What all calls took, those in flight not counted."""
        return self._spent

    def complete(self, request: Request) -> Reply:
        """The provider's answer, its `spent` filled in. Raises BudgetSpent before a cap could be passed."""
        most = worst_case(request, self._price)
        self._reserve(most)
        took = Spent()
        try:
            reply = self._provider.complete(request)
            took = self._took(reply.prompt_tokens, reply.completion_tokens, most)
            return dataclasses.replace(reply, spent=took)
        except CallError as error:
            if error.billed:
                took = error.spent = self._took(error.prompt_tokens, error.completion_tokens, most)
            raise
        finally:
            self._settle(most, took)

    def _took(self, prompt: int | None, completion: int | None, most: Spent) -> Spent:
        """One call; the worst is assumed of an endpoint that does not count."""
        if prompt is None or completion is None:
            return most
        return Spent(1, prompt + completion, self._price.money(prompt, completion))

    def _reserve(self, most: Spent) -> None:
        with self._lock:
            after = self._spent + self._reserved + most
            for name in ("calls", "tokens", "money"):
                cap = getattr(self._budget, name)
                if cap is not None and getattr(after, name) > cap:
                    used = getattr(self._spent + self._reserved, name)
                    what = f"{used:g} of {cap:g} {name} are used and the next call can take {getattr(most, name):g}"
                    raise BudgetSpent("budget of the language model", what, "raise the budget, or stop here")
            self._reserved += most

    def _settle(self, most: Spent, took: Spent) -> None:
        with self._lock:
            self._reserved += Spent(-most.calls, -most.tokens, -most.money)
            self._spent += took
