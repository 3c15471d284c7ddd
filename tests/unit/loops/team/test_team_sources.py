"""A hash of what code computes: what changes it, and what does not."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from ratchet.loops.team.sources import source_digest

PLAIN = '''
LIMIT = 3

def bound(text):
    """How long."""
    return min(len(text), LIMIT)

def reward(first, second):
    return [bound(one) / 2 for one in first]

epochs = 2
'''


def loaded(folder: Path, text: str, name: str = "mine") -> Any:
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    importlib.invalidate_caches()
    import linecache

    linecache.checkcache()
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("epochs = 2", "epochs = 4"),
        ('"""How long."""', '"""The length."""'),
        ("return min", "# at most\n    return min"),
        ("def bound(text)", "def other():\n    return 1\n\ndef bound(text)"),
    ],
)
def test_source_digest_is_the_same_when_nothing_it_computes_has_changed(tmp_path: Path, old: str, new: str) -> None:
    before = source_digest(loaded(tmp_path, PLAIN).reward)
    assert old in PLAIN
    assert source_digest(loaded(tmp_path, PLAIN.replace(old, new)).reward) == before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT = 3", "LIMIT = 4"),
        ("len(text), LIMIT", "LIMIT, len(text) + 1"),
        ("/ 2", "/ 3"),
        ("in first", "in second"),
    ],
)
def test_source_digest_changes_with_code_helpers_and_constants(tmp_path: Path, old: str, new: str) -> None:
    before = source_digest(loaded(tmp_path, PLAIN).reward)
    assert old in PLAIN
    assert source_digest(loaded(tmp_path, PLAIN.replace(old, new)).reward) != before


def test_source_digest_sees_closures_defaults_partials_and_objects() -> None:
    def made(limit: int) -> Any:
        return lambda text: len(text) > limit

    def call(text: str, limit: int = 2) -> bool:
        return len(text) > limit

    class Bound:
        def __init__(self, limit: int) -> None:
            self.limit = limit

        def __call__(self, text: str) -> bool:
            return len(text) > self.limit

    pairs = [
        (made(1), made(2)),
        (functools.partial(call, limit=1), functools.partial(call, limit=2)),
        (Bound(1), Bound(2)),
        (Bound(1).__call__, Bound(2).__call__),
        ({"a": 1}, {"a": 2}),
        (1.0, 1.5),
    ]
    for one, other in pairs:
        assert source_digest(one) != source_digest(other)
    assert source_digest(made(1)) == source_digest(made(1))
    assert source_digest(Bound(1)) == source_digest(Bound(1))


def test_source_digest_of_code_without_a_source_uses_its_bytecode() -> None:
    def made(text: str) -> Any:
        space: dict[str, Any] = {}
        exec(text, space)
        return space["reward"]

    one, same, other = (made(f"def reward(a):\n    return [len(x) * {n} for x in a]") for n in (2, 2, 3))
    assert source_digest(one) == source_digest(same)
    assert source_digest(one) != source_digest(other)


class Alike:
    """All of these hash alike, so that a set has them in the order in which they came."""

    def __init__(self, name: str, words: list[str]) -> None:
        self.name, self.words = name, words

    def __hash__(self) -> int:
        return 0


def test_source_digest_tells_which_of_two_shared_objects_comes_again() -> None:
    one, two = ["a"], ["b"]
    assert source_digest([one, two, one]) != source_digest([one, two, two])


def test_source_digest_of_a_set_does_not_depend_on_the_order_of_its_elements() -> None:
    shared = ["the", "same"]
    one, two = Alike("one", shared), Alike("two", shared)
    assert [each.name for each in {one, two}] != [each.name for each in {two, one}]
    assert source_digest({one, two}) == source_digest({two, one})
    assert source_digest([{one, two}, shared]) == source_digest([{two, one}, shared])


def test_source_digest_ends_on_recursion_and_cycles() -> None:
    def down(n: int) -> int:
        return 0 if n == 0 else down(n - 1)

    cycle: list[Any] = []
    cycle.append(cycle)
    assert source_digest(down)
    assert source_digest(cycle)
