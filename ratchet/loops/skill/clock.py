"""Seconds per phase. Refuses to know the phases; nothing it measures may reach a decision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter


class Clock:
    """Adds up seconds under names, and keeps the whole since it was made."""

    def __init__(self) -> None:
        self._started = perf_counter()
        self._spent: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what runs inside as `name`."""
        before = perf_counter()
        try:
            yield
        finally:
            self._spent[name] = self._spent.get(name, 0.0) + perf_counter() - before

    def timing(self, names: tuple[str, ...]) -> dict[str, float]:
        """`<name>_s` → seconds for each of `names`, 0.0 for what did not happen."""
        return {f"{name}_s": round(self._spent.get(name, 0.0), 4) for name in names}

    def total(self) -> float:
        """Seconds since the clock was made."""
        return round(perf_counter() - self._started, 4)
