"""The flow `research`: which session it means, what it shows, how its end is told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows import research
from made_session import make_session
from ratchet.core.errors import InputError
from ratchet.core.rundir import open_run
from ratchet.settings import settings


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The run directories of a project, which is the working directory."""
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RATCHET_RUNS", str(tmp_path / "runs"))
    settings.cache_clear()
    yield tmp_path / "runs"
    settings.cache_clear()


def stop(run: str | None = None) -> str:
    """What the flow answers when it is asked to stop a session."""
    return asyncio.run(research.research.fn("stop", run)).message or ""  # pyright: ignore[reportArgumentType]


def test_stop_asks_the_session_that_runs_and_no_other_loop(runs: Path) -> None:
    with open_run("train", {"a": 1}, {}, runs=runs) as training:
        with pytest.raises(InputError, match="which session\\? running: none"):
            stop()
        with open_run("iterate", {"a": 1}, {}, runs=runs) as run:
            assert stop() == f"{run.path} ends after its present round"
            assert run.stop_file.exists()
        with pytest.raises(InputError, match="is no session of iterate; name one of iterate"):
            stop("train")
        assert not training.stop_file.exists()
    with pytest.raises(InputError, match="does not run"):
        stop("iterate")
    with pytest.raises(InputError, match="no run 'zz'"):
        stop("zz")


def test_stop_of_one_of_two_sessions_must_be_told_which(runs: Path) -> None:
    with open_run("iterate", {"a": 1}, {}, runs=runs) as one, open_run("iterate", {"a": 2}, {}, runs=runs) as two:
        with pytest.raises(InputError, match="which session"):
            stop()
        stop(two.fingerprint)
        assert (one.stop_file.exists(), two.stop_file.exists()) == (False, True)


def test_rows_of_a_session_are_shown_as_they_stand(tmp_path: Path) -> None:
    assert research.rows_at(tmp_path) == []
    make_session(tmp_path)
    rows = research.rows_at(tmp_path / "data/iterate")
    assert len(rows) == 15
    assert set(rows[0]) == set(research.SHOWN)
