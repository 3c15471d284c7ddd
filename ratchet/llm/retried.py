"""Asks again when a call failed in a way that another attempt may mend, and waits in between.

Refuses to know how a provider works; what each `Trouble` means is in client.py.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from ratchet.core.seeds import derive
from ratchet.llm.client import RETRIED, CallError, Provider, Reply, Request, Spent, charge

LONGEST_WAIT_S = 60.0
PATIENCE_S = 900.0
"""A wait that the endpoint asks for is kept up to this; a longer one fails at once and says so."""


class Retried:
    """`provider`, asked up to `attempts` times; the first wait is `backoff_s`, doubling to a minute, or what the
    endpoint asks for. The spread of the waits derives from the request, so it is the same in each run."""

    def __init__(
        self, provider: Provider, attempts: int, backoff_s: float, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self._provider, self._attempts, self._backoff_s, self._sleep = provider, attempts, backoff_s, sleep

    def complete(self, request: Request) -> Reply:
        """The first answer. Raises the last CallError, with its cause and all that was spent, when there is none."""
        spent, wait_s = Spent(), 0.0
        for attempt in range(1, self._attempts + 1):
            try:
                if wait_s:
                    self._sleep(wait_s)
                reply = self._provider.complete(request)
                return dataclasses.replace(reply, spent=spent + reply.spent)
            except CallError as error:
                spent += error.spent
                wait_s = self._wait_s(error, attempt, request)
                if wait_s is None:
                    raise self._last(error, attempt, spent) from error
            except BaseException as error:  # no budget for another attempt, a wrong key, Ctrl-C: the others were paid
                charge(error, spent)
                raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _wait_s(self, error: CallError, attempt: int, request: Request) -> float | None:
        """How long until the next attempt; None when there is to be none."""
        if error.trouble not in RETRIED or attempt == self._attempts:
            return None
        if error.retry_after_s is not None:
            return error.retry_after_s if error.retry_after_s <= PATIENCE_S else None
        spread = 0.5 + derive(0, request.key(), attempt) / 2**63  # 0.5 to 1.5: many callers do not come back together
        return min(self._backoff_s * 2 ** (attempt - 1), LONGEST_WAIT_S) * spread

    def _last(self, error: CallError, attempt: int, spent: Spent) -> CallError:
        detail = f"{error.detail} (attempt {attempt} of {self._attempts})"
        if error.retry_after_s is not None and error.retry_after_s > PATIENCE_S:
            detail += f"; it asks to wait {error.retry_after_s:.0f} s"
        return CallError(error.where, error.trouble, detail, error.do, spent=spent)
