"""A research session killed at any durable act, continued, and compared with the one that was not: rows, git, bundle.

Experiments are the toy laboratory's; git, the run directory and the publishing are real.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kill_points import run_until_killed

from real_session import REAL, real_project
from tests.support.toy_training import in_child
from toy_session import Scripted, edit, git, rows, session, toy_repository

SCRIPT = [
    ("wider", edit("WIDTH = 4", "WIDTH = 6")),
    ("crashes", edit('FAIL = ""', 'FAIL = "boom"')),
    ("comment", edit("RATE = 0.1", "RATE = 0.1  # a remark")),
    ("slower", edit("RATE = 0.1", "RATE = 0.2")),
    ("again", edit("RATE = 0.1", "RATE = 0.2")),
    ("wider still", edit("WIDTH = 6", "WIDTH = 9")),
]
OVER: dict[str, Any] = {"experiments": 6, "noise_seeds": 2, "gate": {"confidence": 0.6}}
EVERY, PARTS = 6, 8
"""Of the 459 acts of the session each sixth is a kill point, in eight parts that run side by side."""


@pytest.fixture(autouse=True)
def no_real_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL loses no page cache."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_repository(tmp_path_factory.mktemp("research") / "projekt mit Ä")


def leaves(project: Path) -> dict[str, Any]:
    """All of a finished session that must not depend on interruptions."""
    out = project / "out"
    files = ["session.bundle", "session.json", "train.py", "learned.md"]
    files += [path.relative_to(out / "iterate").as_posix() for path in (out / "iterate").rglob("*.patch")]
    return {
        "rows": rows(out),
        "metrics": json.loads((out / "iterate.json").read_text()),
        "files": {name: (out / "iterate" / name).read_bytes() for name in sorted(files)},
        "refs": git(project, "for-each-ref", "--format=%(refname) %(objectname)"),
        "worktree": git(next((project / "runs/iterate").glob("*/worktree")), "status", "--porcelain", "--branch"),
        "checkout": git(project, "status", "--porcelain"),
    }


def run(project: Path, **over: Any) -> None:
    session(project, Scripted(SCRIPT), **{**OVER, **over})


@pytest.fixture(scope="module")
def expected(project: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the session leaves that nobody disturbs."""
    unbroken = shutil.copytree(project, tmp_path_factory.mktemp("unbroken") / "project")
    run(unbroken)
    found = leaves(unbroken)
    statuses = [row["status"] for row in found["rows"]]
    assert statuses == ["keep", "keep", "crash", "discard", "discard", "discard", "keep"]
    return found


def killed(project: Path, folder: Path, first: int, every: int) -> Iterator[tuple[str, Path]]:
    """A fresh copy of the project for each `every`-th act from `first` on, its session killed there."""
    for nth in range(first, 10_000, every):
        attempt = folder / f"kill {nth}"
        shutil.copytree(project, attempt)
        act = run_until_killed(partial(run, attempt), nth)
        if act is None:
            return
        yield act, attempt
        shutil.rmtree(attempt)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(PARTS))
def test_research_killed_at_any_act_ends_as_if_it_had_not_been(
    part: int, project: Path, expected: dict[str, Any], tmp_path: Path
) -> None:
    acts: list[str] = []
    for act, attempt in killed(project, tmp_path, EVERY * part, EVERY * PARTS):
        run(attempt)
        assert leaves(attempt) == expected, f"killed {act}"
        acts.append(act)
    assert len(acts) >= 9  # of all parts at least 72


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_research_killed_again_and_again_ends_as_if_it_had_not_been(
    project: Path, expected: dict[str, Any], tmp_path: Path
) -> None:
    attempt = shutil.copytree(project, tmp_path / "attempt")
    for nth in (180, 5, 60, 21, 90):
        run_until_killed(partial(run, attempt), nth)
    run(attempt)
    assert leaves(attempt) == expected


STEPS = 4
WAITS = """\
        import os
        import time

        while progress >= 0.5 and not os.path.exists({path!r}):
            time.sleep(0.01)
"""
"""Lines of an arena whose third step waits for a file: its session dies in its middle however slow the machine is."""


def saved(project: Path) -> list[int]:
    """The checkpoints of the trainings under way; of a finished one none is left."""
    found = (project / "runs/iterate").glob("*/work/*/runs/train/*/checkpoints/[0-9]*")
    return [int(path.name) for path in found]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_real_training_killed_in_the_middle_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """A real sandboxed training whose session dies by SIGKILL: the next session takes its steps over."""
    whole, broken, goes_on = real_project(tmp_path / "whole"), tmp_path / "broken", tmp_path / "goes on"
    before, signature, after = (
        (whole / "arena/train.py")
        .read_text()
        .partition("    def step(self, batches: Sequence[Tensor], progress: float) -> Tensor:\n")
    )
    (whole / "arena/train.py").write_text(before + signature + WAITS.format(path=str(goes_on)) + after)
    shutil.copytree(whole, broken)
    over = {**REAL, "train": {**REAL["train"], "horizon": {"unit": "steps", "value": STEPS}}, "experiments": 0}

    def dies_in_its_first_training() -> None:
        def kill() -> None:
            while max(saved(broken), default=0) < STEPS // 2:
                time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=kill, daemon=True).start()
        session(broken, Scripted([]), laboratory=None, **over)

    assert in_child(dies_in_its_first_training) == -signal.SIGKILL
    assert saved(broken)
    goes_on.touch()
    session(broken, Scripted([]), laboratory=None, **over)
    said = (broken / "out/iterate/experiments/0/run.log").read_text()
    continued = re.search(r"train: continues \S+ at step (\d+) of", said)
    assert continued is not None, said
    assert 0 < int(continued.group(1)) <= STEPS // 2
    session(whole, Scripted([]), laboratory=None, **over)
    assert rows(broken / "out") == rows(whole / "out")
    files = [(place / "out/iterate/session.bundle").read_bytes() for place in (whole, broken)]
    assert files[0] == files[1]
