"""Runs the cheats that a test session has selected, a few at once; tests then wait for theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from ratchet.sandbox.job import Sandbox
from tests.faults.catalogue import CHEATS, Attempt, Ground, attempt

AT_ONCE = 3
PATIENCE_S = 280.0


@contextmanager
def attempts_at_once(
    request: pytest.FixtureRequest, ground: Ground, where: Path, sandbox: Sandbox
) -> Iterator[Callable[[str], Attempt]]:
    """A function that gives the attempt of a name; those that the module's selected tests name have begun already."""
    here = [item for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path]
    chosen = {item.callspec.params.get("name") for item in here if hasattr(item, "callspec")}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        started = {name: pool.submit(attempt, name, ground, where, sandbox) for name in CHEATS if name in chosen}

        def attempt_of(name: str) -> Attempt:
            if name not in started:
                started[name] = pool.submit(attempt, name, ground, where, sandbox)
            return started[name].result(PATIENCE_S)

        try:
            yield attempt_of
        finally:
            pool.shutdown(cancel_futures=True)
