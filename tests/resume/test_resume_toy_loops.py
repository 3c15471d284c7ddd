"""Three loops of the core, killed at every durable act, resumed, and compared byte for byte with the unbroken run.

Then the mutants of the core that lose or bend a step: the same matrix must catch each one.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kill_points import run_until_killed, tree, write_in_two
from toy_loops import TOYS, Toy

from ratchet.core import atomic
from ratchet.core.budget import Budget
from ratchet.core.checkpoint import Store
from ratchet.core.errors import RatchetError
from ratchet.core.ledger import Ledger
from ratchet.core.loop import Outcome, drive
from ratchet.core.rundir import open_run


@dataclass(frozen=True)
class Core:
    """The parts of the core a mutant replaces."""

    drive: Callable[..., Any] = drive
    store: type[Store] = Store
    ledger: type[Ledger] = Ledger
    budget: Callable[[Budget], Budget] = lambda budget: budget


REAL = Core()


@pytest.fixture(autouse=True)
def no_real_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL loses no page cache: real syncs would only make hundreds of runs slow."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def run_toy(toy: Toy, folder: Path, core: Core = REAL) -> Any:
    """One process' life: open the run, drive it as far as the budget goes, mark it."""
    identity = {"loop": toy.name, "code": {"toy": "1"}}
    with open_run(toy.name, identity, {}, runs=folder, keep_best=toy.keep_best) as run:
        run.ledger.__class__ = core.ledger
        run.store.__class__ = core.store
        budget = core.budget(toy.budget)
        state = core.drive(toy.initial, toy.step_for(run), store=run.store, ledger=run.ledger, budget=budget)
        run.end("finished", "budget")
    return state


def kills(toy: Toy, folder: Path, core: Core = REAL, *, every: int = 1) -> Iterator[tuple[str, Path]]:
    """Kill a fresh run at each `every`-th act; yields the act and the folder with what the dead process left."""
    for nth in range(0, 10_000, every):
        attempt = folder / f"kill-{nth}"
        attempt.mkdir()
        act = run_until_killed(lambda at=attempt: run_toy(toy, at, core), nth)
        if act is None:
            return
        yield act, attempt
        shutil.rmtree(attempt)


def matrix(toy: Toy, folder: Path, core: Core = REAL, *, every: int = 1) -> Iterator[tuple[str, str]]:
    """(act, what a run killed there and resumed does differently from the unbroken one, "" if nothing)."""
    run_toy(toy, folder / "unbroken", core)
    expected = tree(folder / "unbroken")
    for act, attempt in kills(toy, folder, core, every=every):
        try:
            run_toy(toy, attempt, core)
        except RatchetError as error:
            yield act, str(error)
        else:
            found = tree(attempt)
            differing = [name for name in {*found, *expected} if found.get(name) != expected.get(name)]
            yield act, ", ".join(sorted(differing))


def caught(toy: Toy, folder: Path, core: Core = REAL, *, every: int = 1) -> str:
    """The first act of the matrix after which the mutant `core` differs; "" when the matrix does not see it."""
    return next((act for act, wrong in matrix(toy, folder, core, every=every) if wrong), "")


@pytest.mark.slow
@pytest.mark.parametrize("name", TOYS)
def test_toy_loop_killed_at_every_act_resumes_to_the_unbroken_bytes(name: str, tmp_path: Path) -> None:
    acts = dict[str, str]()
    total = 0
    for act, wrong in matrix(TOYS[name], tmp_path):
        assert not wrong, f"killed {act}"
        acts[act], total = wrong, total + 1
    assert total >= 70
    assert {
        "torn ledger",
        "before HEAD",
        "after HEAD",
        "before fsync of ledger.jsonl",
        "inside a removal",
    } <= acts.keys()
    assert name == "climb" or "inside a blob" in acts


@pytest.mark.slow
@pytest.mark.parametrize("name", TOYS)
def test_toy_loop_killed_again_while_it_resumes_ends_in_the_unbroken_bytes(name: str, tmp_path: Path) -> None:
    toy = TOYS[name]
    run_toy(toy, tmp_path / "unbroken")
    for turn, (_, attempt) in enumerate(kills(toy, tmp_path, every=11)):
        for again in range(3):
            run_until_killed(partial(run_toy, toy, attempt), (turn * 7 + again * 13) % 40)
        run_toy(toy, attempt)
        assert tree(attempt) == tree(tmp_path / "unbroken")


def test_toy_loop_of_one_step_killed_anywhere_commits_it_all_the_same(tmp_path: Path) -> None:
    assert not [act for act, wrong in matrix(replace(TOYS["weights"], budget=Budget(steps=1)), tmp_path) if wrong]


def test_toy_loop_stopped_half_way_and_continued_equals_never_stopped(tmp_path: Path) -> None:
    toy = TOYS["weights"]
    run_toy(toy, tmp_path / "unbroken")
    run_toy(replace(toy, budget=Budget(steps=3)), tmp_path / "stopped")
    run_toy(toy, tmp_path / "stopped")
    assert tree(tmp_path / "stopped") == tree(tmp_path / "unbroken")


def test_toy_loop_resumed_when_finished_changes_nothing(tmp_path: Path) -> None:
    run_toy(TOYS["climb"], tmp_path)
    before = tree(tmp_path)
    run_toy(TOYS["climb"], tmp_path)
    assert tree(tmp_path) == before


def test_climb_reaches_a_score_of_zero_and_survives_nan(tmp_path: Path) -> None:
    """What the mutants below rely on."""
    assert run_toy(TOYS["climb"], tmp_path)["best"] == 0.0
    rows = [json.loads(line) for line in next(tmp_path.rglob("ledger.jsonl")).read_text().splitlines()]
    assert rows[3]["decision"] == "crash"
    assert rows[3]["score"] is None


# Mutants: each must be caught by the matrix


def commit_before_ledger(initial: Any, step: Any, *, store: Store, ledger: Ledger, budget: Budget) -> Any:
    seq, state = store.load() or (0, initial)
    while budget.exhausted(seq, ledger.rows()) is None:
        outcome = step(seq, state)
        seq, state = seq + 1, atomic.plain(outcome.state, "")
        store.commit(seq, state, outcome.blobs, score=outcome.score)
        ledger.put(seq - 1, outcome.row)
    return state


def test_mutant_commit_before_ledger_is_caught(tmp_path: Path) -> None:
    assert caught(TOYS["document"], tmp_path, Core(drive=commit_before_ledger))


def test_mutant_shared_generator_rebuilt_on_resume_is_caught(tmp_path: Path) -> None:
    def step_for(run: Any) -> Any:
        generator = random.Random(1)  # shared by all steps of one process
        return lambda seq, state: Outcome({"x": generator.random()}, {"x": state["x"]})

    assert caught(Toy("shared", {"x": 0.0}, step_for, Budget(steps=4)), tmp_path, every=5)


class ZeroIsFalsy(Store):
    def load(self) -> Any:
        found = super().load()
        return found and (found[0], {key: value or None for key, value in found[1].items()})


def test_mutant_zero_is_falsy_is_caught(tmp_path: Path) -> None:
    assert caught(TOYS["climb"], tmp_path, Core(store=ZeroIsFalsy), every=7)


class TornLineStays(Ledger):
    def _write(self, start: int, line: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())


def test_mutant_torn_last_line_stays_is_caught(tmp_path: Path) -> None:
    assert caught(TOYS["document"], tmp_path, Core(ledger=TornLineStays)) == "torn ledger"


class ForgettingBudget(Budget):
    """Counts only what this process has used."""

    def exhausted(self, seq: int, rows: Any) -> str | None:
        rows = list(rows)
        start = self.__dict__.setdefault("start", len(rows))
        used = sum(row["tokens"] for row in rows[start:])
        return "used up" if used >= (self.tokens or 0) else None


def test_mutant_budget_forgets_is_caught(tmp_path: Path) -> None:
    def forget(budget: Budget) -> Budget:
        return ForgettingBudget(tokens=budget.tokens)

    assert caught(TOYS["document"], tmp_path, Core(budget=forget), every=7)


class HeadBeforeBlobs(Store):
    def commit(self, seq: int, state: Any, blobs: Any, *, score: float | None = None) -> None:
        atomic.write_text(self.head_file, f"{seq} {'0' * 64}")
        super().commit(seq, state, blobs, score=score)


def test_mutant_head_before_blobs_is_caught(tmp_path: Path) -> None:
    assert caught(TOYS["weights"], tmp_path, Core(store=HeadBeforeBlobs))


class OldRemovedFirst(Store):
    def commit(self, seq: int, state: Any, blobs: Any, *, score: float | None = None) -> None:
        for old in self.sequences():
            if seq > 1 and old != self.seq:
                atomic.remove_folder(self.path(old))
        if self.seq:
            atomic.remove_folder(self.path(self.seq))
        super().commit(seq, state, blobs, score=score)


def test_mutant_old_checkpoint_removed_before_the_new_one_is_good_is_caught(tmp_path: Path) -> None:
    toy = Toy(
        "plain", {"x": 1}, lambda run: lambda seq, state: Outcome({"x": state["x"] * 3}, {}, _blob()), Budget(steps=4)
    )
    assert caught(toy, tmp_path, Core(store=OldRemovedFirst), every=2)


def _blob() -> dict[str, Callable[[Path], None]]:
    return {"data": partial(write_in_two, data=b"0123456789")}
