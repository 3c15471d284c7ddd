"""What the loops' flows share: rows are shown as they come, whatever goes wrong with that, and how an end is told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows import artifacts, loop, research, skill, team
from flows.loop import Loop, Rows
from flows.stage_process import Ending
from ratchet.core.rundir import open_run
from ratchet.settings import settings


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("RATCHET_RUNS", str(tmp_path / "runs"))
    settings.cache_clear()
    yield tmp_path / "runs"
    settings.cache_clear()


def test_rows_that_cannot_be_shown_fail_no_run_and_are_shown_later_and_once(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[tuple[int, Path]] = []
    looks = 0

    def rows(folder: Path) -> Rows:
        nonlocal looks
        looks += 1
        if looks > 5:
            raise asyncio.CancelledError
        return [{}] * 3

    async def show(found: Rows, folder: Path) -> None:
        shown.append((len(found), folder))
        if len(shown) < 3:
            raise ValueError("cannot be drawn")

    monkeypatch.setattr(loop, "WATCH_S", 0.01)
    artifacts.say_once.cache_clear()
    with open_run("toy", {"a": 1}, {}, runs=runs) as run, pytest.raises(asyncio.CancelledError):
        asyncio.run(loop.follow(Loop("toy", "try", "step", "x", rows, show)))
    assert shown == [(3, run.path)] * 3
    assert capsys.readouterr().err.count("ValueError: cannot be drawn") == 1


@pytest.mark.parametrize("each", [research.LOOP, skill.LOOP, team.LOOP], ids=lambda each: each.name)
@pytest.mark.parametrize(
    ("ending", "name", "said"),
    [
        (Ending("Ran", 0, ()), "Ran", "see data/{0.name}/{0.summary}"),
        (Ending("Stopped", 130, ("stopped",)), "Stopped", "the {0.work} was stopped; it can go on"),
        (Ending("Failed", 3, ("engine: died; start it",)), "Failed", "the {0.work} failed: engine: died; start it"),
    ],
)
def test_end_of_a_run_has_the_stages_name_and_says_what_to_do(ending: Ending, name: str, said: str, each: Loop) -> None:
    state = loop.state_of(each, ending)
    assert (state.name, state.message) == (name, said.format(each))
