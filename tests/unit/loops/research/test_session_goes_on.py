"""A session that goes on under other circumstances than it began with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from ratchet.loops.research import step
from ratchet.loops.research.executor import Experiment, Result, Worker
from ratchet.loops.research.state import State, Version
from toy_session import Scripted, edit, fake_laboratory, rows, session, settings, toy_repository

WIDER = ("wider", edit("WIDTH = 4", "WIDTH = 6"))
SLOWER = ("slower", edit("RATE = 0.1", "RATE = 0.2"))


def test_session_continued_inexactly_judges_the_models_it_has_on_the_test_split(tmp_path: Path) -> None:
    project, jobs = toy_repository(tmp_path / "project"), list[Experiment]()

    def laboratory(job: Experiment, worker: Worker) -> Result:
        jobs.append(job)
        return fake_laboratory(job, worker)

    script = Scripted([SLOWER, WIDER])
    session(project, script, experiments=1)
    elsewhere = settings(project, threads=2, allow_inexact=True)
    told = session(project, script, experiments=2, laboratory=laboratory, here=elsewhere)
    assert (told["kept"], told["test"]["documents"]) == (1, 60)
    assert [(job.number, job.split.name) for job in jobs] == [(2, "val"), (0, "test"), (2, "test")]
    assert all((job.folder / "result-val.json").is_file() for job in jobs)


def test_isolation_is_told_of_each_experiment_and_of_a_session_the_weakest(tmp_path: Path) -> None:
    project, where = toy_repository(tmp_path / "project"), {0: "container", 1: "container", 2: "weak"}

    def laboratory(job: Experiment, worker: Worker) -> Result:
        return replace(fake_laboratory(job, worker), isolation=where[job.number])

    script = Scripted([SLOWER, WIDER])
    told = [session(project, script, experiments=count, laboratory=laboratory)["isolation"] for count in (1, 2)]
    assert told == ["container", "weak"]
    assert [row["isolation"] for row in rows(project / "out")] == ["container", "container", "weak"]


def test_proposer_that_had_no_more_is_asked_again_by_the_next_process(tmp_path: Path) -> None:
    project = toy_repository(tmp_path / "project")
    for script, done, asked in (([SLOWER], 1, 2), ([SLOWER], 1, 1), ([SLOWER, WIDER], 2, 2)):
        proposer = Scripted(script)
        told = session(project, proposer, experiments=9)
        assert (told["experiments"], told["ended"]) == (done, "the script is at its end")
        assert len(proposer.questions) == asked
    assert [row["status"] for row in rows(project / "out")] == ["keep", "discard", "keep"]
    assert "It ended because the script is at its end." in (project / "out/iterate/learned.md").read_text()


def test_state_of_an_earlier_version_is_read_without_what_nobody_reads() -> None:
    version = Version(number=0, commit="c", key="k", score=2.0, lines=9)
    state = State(base="b", baseline=version, best=version, sd=0.1, scores=(2.0, 2.1), seconds_limit=60.0)
    assert State.of({**state.as_json(), "exhausted": "no more"}) == state


class Clock:
    """In place of time: an experiment takes as long as `laboratory` says, and no other second passes."""

    def __init__(self, seconds: float) -> None:
        self.now, self.seconds = 0.0, seconds
        self.limits: dict[int, float] = {}

    def laboratory(self, job: Experiment, worker: Worker) -> Result:
        self.limits[job.number] = job.seconds
        self.now += self.seconds
        return replace(fake_laboratory(job, worker), seconds=self.seconds)


def test_hours_end_a_session_and_more_hours_let_it_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty minutes an experiment: the baseline's three seeds take the first hour."""
    clock, project = Clock(1200.0), toy_repository(tmp_path / "project")
    monkeypatch.setattr(step, "time", SimpleNamespace(monotonic=lambda: clock.now))
    script = Scripted([SLOWER, ("third", edit("RATE = 0.1", "RATE = 0.3")), WIDER])
    for hours, done in ((1, 0), (1.5, 2), (1.6, 2), (1.7, 3)):
        told = session(project, script, experiments=9, hours=hours, laboratory=clock.laboratory)
        assert (told["experiments"], told["ended"]) == (done, f"the budget of {hours * 3600:g} seconds is used up")
    assert clock.limits[1] == clock.limits[3] == 3 * 1200  # limits.factor times the baseline's longest


def test_money_that_is_raised_lets_a_session_go_on(tmp_path: Path) -> None:
    project, script = toy_repository(tmp_path / "project"), Scripted([SLOWER, WIDER], money=0.6)
    for money, done in ((0.5, 1), (1.1, 2)):
        assert session(project, script, experiments=9, money=money)["experiments"] == done


def test_session_with_another_seed_and_no_tag_is_a_new_one(tmp_path: Path) -> None:
    project = toy_repository(tmp_path / "project")
    tags = [session(project, Scripted([]), experiments=0, tag=None, seed=seed)["tag"] for seed in (1, 2, 1)]
    assert tags[0] == tags[2] != tags[1]
    assert len(list((project / "runs/iterate").iterdir())) == 2
