"""The DAG as DVC describes it, on a real DVC project."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from ratchet.core.errors import InputError
from ratchet.dag import Dag, Node, read_dag
from toy_project import Toy


def node(name: str, *parents: str, changes: tuple[str, ...] = ()) -> Node:
    return Node(name, "", parents, timeout_s=None, retries=0, outs=(), changes=changes)


DIAMOND = Dag((node("a"), node("left", "a", changes=("parameter left.x modified",)), node("right", "a"),
               node("end", "left", "right")))  # fmt: skip


def test_stale_follows_the_arrows_and_gives_reasons() -> None:
    assert DIAMOND.stale(DIAMOND.nodes) == {"left": ("parameter left.x modified",), "end": ("reads from left",)}


def test_stale_forced_stage_pulls_in_those_below() -> None:
    assert list(DIAMOND.stale(DIAMOND.nodes, forced=["a"])) == ["a", "left", "right", "end"]


def test_stale_outside_the_choice_does_not_count() -> None:
    assert DIAMOND.stale(DIAMOND.chosen(first="right", last="right")) == {}


@pytest.mark.parametrize(
    ("first", "last", "names"),
    [
        (None, None, ["a", "left", "right", "end"]),
        ("left", None, ["left", "end"]),
        (None, "right", ["a", "right"]),
        ("a", "left", ["a", "left"]),
    ],
)
def test_chosen_is_what_lies_between(first: str | None, last: str | None, names: list[str]) -> None:
    assert [n.name for n in DIAMOND.chosen(first=first, last=last)] == names


def test_chosen_nothing_between_is_an_input_error() -> None:
    with pytest.raises(InputError, match="no stage lies between 'end' and 'a'"):
        DIAMOND.chosen(first="end", last="a")


def test_unknown_stage_names_the_nearest() -> None:
    with pytest.raises(InputError, match="no stage 'lefft'; did you mean 'left'"):
        DIAMOND["lefft"]


@pytest.mark.slow
def test_read_dag_order_meta_and_changes_of_a_real_project(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "с пробелом ü", tmp_path / "home")
    dag = read_dag(toy.root)
    assert [n.name for n in dag.nodes] == ["a", "left", "right", "end"]
    assert dag["right"].parents == ("a",)
    assert (dag["right"].timeout_s, dag["left"].timeout_s, dag["a"].desc) == (120.0, None, "Write the number")
    assert all(n.changes == ("never ran",) for n in dag.nodes)
    Toy.repro(toy.root)
    assert not any(n.changes for n in read_dag(toy.root).nodes)
    toy.write("params.yaml", "a: {number: 1}\nleft: {fail: false, sleep: 0.1}\nright: {}\nend: {}\n")
    (toy.root / "out/right").unlink()
    dag = read_dag(toy.root)
    assert dag["left"].changes == ("parameter left.sleep 0 → 0.1",)
    assert dag["right"].changes == ("out/right is missing",)
    assert list(dag.stale(dag.nodes)) == ["left", "right", "end"]


@pytest.mark.slow
def test_read_dag_answers_while_a_stage_runs_and_says_which(tmp_path: Path) -> None:
    import subprocess

    toy = Toy(tmp_path / "toy", tmp_path / "home")
    Toy.repro(toy.root, "a")
    toy.write("params.yaml", "a: {number: 1}\nleft: {fail: false, sleep: 30}\nright: {}\nend: {}\n")
    environment = toy.environment()
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    repro = subprocess.Popen(
        [sys.executable, "-m", "dvc", "repro", "-q", "-s", "left"],
        cwd=toy.root,
        env=environment,
        start_new_session=True,
    )
    try:
        until = time.monotonic() + 60
        while not (toy.root / ".ratchet/pids").exists() and time.monotonic() < until:
            time.sleep(0.1)
        dag = read_dag(toy.root)
        assert dag["left"].running == repro.pid
        assert (dag["a"].running, dag["a"].changes) == (None, ())
    finally:
        import os
        import signal

        os.killpg(repro.pid, signal.SIGKILL)
        repro.wait()
    assert read_dag(toy.root)["left"].running is None


def test_read_dag_looks_again_when_a_file_vanishes_under_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from ratchet import dag
    from ratchet.core.errors import InfrastructureError

    answers: list[Dag | None] = [None, DIAMOND]

    def read(_root: Path) -> Dag:
        answer = answers.pop(0)
        if answer is None:
            raise FileNotFoundError("out/a")
        return answer

    monkeypatch.setattr(dag, "_read", read)
    assert read_dag(tmp_path) is DIAMOND
    answers[:] = [None, None, None]
    with pytest.raises(InfrastructureError, match="its files change while they are read"):
        read_dag(tmp_path)


def test_read_dag_broken_pipeline_is_one_line(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "toy", tmp_path / "home")
    toy.write("dvc.yaml", "stages:\n  a:\n    comand: x\n")
    with pytest.raises(InputError, match=r"dvc.yaml: DVC cannot read it"):
        read_dag(toy.root)
