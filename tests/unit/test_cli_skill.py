"""`ratchet skill` and `ratchet resume` of a loop: what they start, as the flow would be started."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import yaml

import toy_skill
from ratchet import cli
from ratchet.core.errors import InputError
from ratchet.core.rundir import list_runs, open_run
from ratchet.settings import settings
from toy_project import Toy

pytestmark = pytest.mark.slow

DVC_YAML = """
    stages:
      skill:
        cmd: python -m steps.skill
        deps: [skills]
        params: [skill]
        outs: [data/skill]
      team:
        cmd: python -m steps.team
        outs: [data/team]
      plot:
        cmd: python -m steps.plot
        deps: [data/skill]
        outs: [data/plot]
    """


class Started(Exception):  # noqa: N818
    """In place of becoming the process."""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project with the toy skill and a stage that reads it; the working directory."""
    toy = Toy(tmp_path / "ein Projekt", tmp_path / "home")
    toy_skill.make_project(toy.root)
    toy.write("params.yaml", yaml.safe_dump({"skill": toy_skill.TOY}))
    toy.write("dvc.yaml", DVC_YAML)
    toy.commit()
    monkeypatch.chdir(toy.root)
    monkeypatch.setenv("RATCHET_RUNS", str(toy.root / "runs"))
    settings.cache_clear()
    yield toy.root
    settings.cache_clear()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], Mapping[str, str], Path]]:
    """Each process that a command would have become: its arguments, its environment, where."""
    found: list[tuple[list[str], Mapping[str, str], Path]] = []

    def execve(program: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        found.append((list(command[1:]), environment, Path.cwd()))
        raise Started

    monkeypatch.setattr(os, "execve", execve)
    return found


def test_skill_starts_its_stage_alone_and_with_an_override_in_a_copy(project: Path, started: list) -> None:
    for override in (None, ["skill.num_epochs=1"]):
        with pytest.raises(Started):
            cli.skill(dry_run=False, override=override)
        os.chdir(project)
    assert [command for command, _, _ in started] == [
        ["-m", "flows.pipeline", "--from", "skill", "--until", "skill"]
    ] * 2
    assert [where == project for _, _, where in started] == [True, False]
    assert started[1][2].parent == project / ".ratchet/copies"
    assert started[1][1]["RATCHET_RUNS"] == str(project / "runs")


def test_resume_of_a_training_hands_its_run_to_the_stage(project: Path, started: list) -> None:
    with open_run("skill", {"a": 1}, {}, runs=project / "runs") as run:
        run.store.commit(1, {"step": 0}, {})
    with pytest.raises(Started):
        cli.resume("skill")
    ((command, environment, _),) = started
    assert command == ["-m", "flows.pipeline"]
    assert environment["RATCHET_RESUME_RUN"] == str(run.path.resolve())


def test_resume_of_a_damaged_run_is_refused_unless_its_loop_gives_way_by_itself(project: Path, started: list) -> None:
    for loop in ("skill", "team"):
        with open_run(loop, {"a": 1}, {}, runs=project / "runs") as run:
            for seq in (1, 2):
                run.store.commit(seq, {"step": seq}, {"weights": lambda path: path.write_bytes(b"whole")})
            run.store.blob("weights").write_bytes(b"torn")
    assert {run.state for run in list_runs(project / "runs")} == {"damaged"}
    with pytest.raises(InputError, match=r"cannot be resumed: damaged, .*; add `--resume auto`"):
        cli.resume("skill")
    with pytest.raises(Started):
        cli.resume("team")
    assert [environment["RATCHET_RESUME_RUN"] for _, environment, _ in started] == [str(run.path.resolve())]
