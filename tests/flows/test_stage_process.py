"""The child process of a stage: what its words mean, what is passed on, and that nothing outlives it."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

from flows import stage_process
from flows.stage_process import lines, own_lines, reproduce
from toy_project import Toy


@pytest.fixture
def inside(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> Toy:
    """The toy project as working directory."""
    monkeypatch.chdir(toy.root)
    return toy


def run_stage(name: str, *, force: bool = False) -> tuple[stage_process.Ending, list[str]]:
    said: list[str] = []
    return asyncio.run(reproduce(name, force=force, say=said.append)), said


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for_pids(project: Path, *, patience_s: float = 90) -> list[int]:
    """The stage's own process and its child, once both are there."""
    file = project / ".ratchet/pids"
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        if file.exists() and len(pids := file.read_text().split()) == 2:
            return [int(pid) for pid in pids]
        time.sleep(0.05)
    raise AssertionError("the stage did not start")


@pytest.mark.slow
def test_reproduce_names_how_dvc_dealt_with_the_stage(inside: Toy) -> None:
    ran, said = run_stage("a")
    assert (ran.kind, ran.exit_code) == ("Ran", 0)
    assert "step 1/2 of a in ü" in said
    assert not any("git add" in line or "dvc push" in line for line in said)
    assert "step 1/2 of a" in (inside.root / ".ratchet/logs/a.log").read_text(encoding="utf-8")
    assert run_stage("a")[0].kind == "Skipped"
    assert run_stage("a", force=True)[0].kind == "Ran"
    (inside.root / "out/a").unlink()
    (inside.root / "dvc.lock").unlink()
    assert run_stage("a")[0].kind == "Cached"
    assert (inside.root / "out/a").read_text() == "1"


@pytest.mark.slow
def test_reproduce_failing_stage_gives_its_own_words_and_exit_code(inside: Toy) -> None:
    run_stage("a")
    inside.write("params.yaml", "a: {number: 1}\nleft: {fail: true, sleep: 0}\nright: {}\nend: {}\n")
    ending, _ = run_stage("left")
    assert (ending.kind, ending.exit_code) == ("Failed", 2)
    assert ending.last[-1] == "left: fail = True; set it to false"


@pytest.mark.slow
def test_reproduce_cancelled_leaves_no_process_even_one_that_ignores_term(
    inside: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_process, "GRACE_S", 1.0)
    run_stage("a")
    source = (inside.root / "work.py").read_text()
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    inside.write("work.py", stubborn + source)
    run_stage("a")
    inside.write("params.yaml", "a: {number: 1}\nleft: {fail: false, sleep: 300}\nright: {}\nend: {}\n")

    async def start_and_cancel() -> list[int]:
        task = asyncio.create_task(reproduce("left", say=lambda _: None))
        pids = await asyncio.to_thread(wait_for_pids, inside.root)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return pids

    pids = asyncio.run(start_and_cancel())
    assert not any(alive(pid) for pid in pids)


def test_lines_split_at_carriage_returns_and_across_chunks() -> None:
    async def read() -> list[str]:
        stream = asyncio.StreamReader()
        for part in (b"one\ntw", "o ü".encode()[:3], "o ü".encode()[3:], b"\r50 %\r\n\nlast"):
            stream.feed_data(part)
        stream.feed_eof()
        return [line async for line in lines(stream)]

    assert asyncio.run(read()) == ["one", "two ü", "50 %", "last"]


def test_own_lines_leaves_out_what_dvc_says_but_never_everything() -> None:
    from collections import deque

    said = deque(
        ["Running stage 'a':", "> python a", "a: bad; mend it", "ERROR: failed to reproduce 'a': exited with 2"]
    )
    assert own_lines(said) == ("a: bad; mend it",)
    only = deque(["ERROR: failed to reproduce 'a': output 'x' does not exist"])
    assert own_lines(only) == tuple(only)
    assert own_lines(deque()) == ("it said nothing",)


def test_stage_environment_has_this_interpreter_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    path = stage_process.stage_environment()["PATH"].split(os.pathsep)
    assert path == [str(Path(sys.executable).parent), "/usr/bin"]
