"""A store that saves behind the training's back: what it holds is what was, and nothing counts before it is durable."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import toy_team
from ratchet.core import atomic
from ratchet.core.checkpoint import Store
from ratchet.core.errors import InputError
from ratchet.core.rundir import list_runs
from ratchet.loops.team import behind
from ratchet.loops.team.behind import StoreBehind

SMALL: dict[str, Any] = {"num_train_epochs": 2, "max_new_tokens": 4, "num_generations": 2, "eval_interval": 0,
                         "test_samples": 1}  # fmt: skip


class Gate:
    """Holds every fsync of `thread`s other than the one that made it until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened, self._maker, plain = threading.Event(), threading.current_thread(), os.fsync

        def fsync(descriptor: int) -> None:
            if threading.current_thread() is not self._maker:
                assert self.opened.wait(20)
            plain(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)


def made(folder: Path, named: list[int] | None = None) -> StoreBehind:
    told: list[int] = [] if named is None else named

    def tell(seq: int, state: Mapping[str, Any]) -> None:
        told.append(seq)

    return StoreBehind(Store(folder, loop="team", fingerprint="f"), tell)


def test_store_behind_commits_what_was_and_counts_it_when_it_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named: list[int] = []
    store, weights = made(tmp_path, named), bytearray(b"old")
    assert store.load() is None
    gate = Gate(monkeypatch)
    store.commit(1, {"step": 1}, {"weights": lambda path: path.write_bytes(bytes(weights))})
    weights[:] = b"new"
    assert (store.newest, named, store.head_file.exists()) == (1, [], False)
    gate.opened.set()
    store.wait()
    assert (store.newest, named, store.head()) == (1, [1], (1, store.verify(1)["sha256"]))
    assert store.blob("weights").read_bytes() == b"old"
    assert {item.name for item in tmp_path.iterdir()} == {"HEAD", "checkpoints"}


def test_store_behind_commits_one_at_a_time_and_in_order(tmp_path: Path) -> None:
    named: list[int] = []
    store = made(tmp_path, named)
    for seq in range(1, 6):
        store.commit(seq, {"step": seq}, {"weights": lambda path, seq=seq: path.write_bytes(bytes([seq]))})
    store.wait()
    assert named == [1, 2, 3, 4, 5]
    assert made(tmp_path).load() == (5, {"step": 5})


def test_store_behind_full_disk_is_told_by_the_next_call_and_the_one_before_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = made(tmp_path)
    store.commit(1, {}, {"weights": lambda path: path.write_bytes(b"good")})
    store.wait()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    for told in (store.wait, lambda: store.commit(3, {}, {})):
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            store.commit(2, {}, {"weights": lambda path: path.write_bytes(b"lost")})
            with pytest.raises(OSError, match="No space left"):
                told()
    store.finish()
    again = made(tmp_path)
    assert again.load() == (1, {})
    assert again.blob("weights").read_bytes() == b"good"
    assert {item.name for item in tmp_path.iterdir()} == {"HEAD", "checkpoints"}


def test_store_behind_writer_that_raises_is_told_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    def fails(path: Path) -> None:
        path.write_bytes(b"half")
        raise InputError("weights", "cannot be written", "mend it")

    store = made(tmp_path)
    with pytest.raises(InputError, match="cannot be written"):
        store.commit(1, {}, {"weights": fails})
    assert [item for item in tmp_path.iterdir() if atomic.TEMP_MARK in item.name] == []
    store.commit(1, {}, {})
    store.wait()
    assert store.head() is not None


def test_store_behind_interrupted_while_it_waits_still_has_the_commit_to_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the run's lock would be given back while the thread moves HEAD."""

    def interrupted(_self: Future[None], _timeout: float | None = None) -> None:
        raise KeyboardInterrupt

    store = made(tmp_path)
    assert store.load() is None
    gate = Gate(monkeypatch)
    store.commit(1, {"step": 1}, {"weights": lambda path: path.write_bytes(b"1")})
    with monkeypatch.context() as second_signal:
        second_signal.setattr(Future, "exception", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.wait()
    gate.opened.set()
    store.finish()
    assert store.head() == (1, store.verify(1)["sha256"])


def test_store_behind_sweeps_what_a_kill_left_of_its_blobs(tmp_path: Path) -> None:
    stale = tmp_path / f".captured{atomic.TEMP_MARK}1"
    stale.mkdir()
    (stale / "weights").write_bytes(b"half")
    made(tmp_path).load()
    assert not stale.exists()


def test_store_behind_training_goes_on_while_it_saves_and_ends_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first checkpoint becomes durable only after the second epoch has begun; the end waits for the last one."""
    gate, heads = Gate(monkeypatch), list[bool]()
    task = toy_team.LetterTask(items=4, held_out=1)
    plain = task.reward

    def reward(completions: list[list[str]], items: Any) -> list[float]:
        runs = list_runs(tmp_path / "runs")
        heads.append(bool(runs) and (runs[0].path / "HEAD").exists())
        if len(heads) == 2:  # the untrained look is still being saved, and the first epoch runs
            gate.opened.set()
        return plain(completions, items)

    task.reward = reward  # type: ignore[method-assign]
    ending, run = toy_team.train(tmp_path, task=task, **SMALL)
    assert heads[:2] == [False, False]
    assert Store(run).head() == (3, Store(run).verify(3)["sha256"])
    assert ending.state.epoch == 2


def test_store_behind_is_waited_for_when_the_training_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was handed over before the fault is the newest checkpoint when the run's lock is given back."""
    slow, plain = list[str](), behind.StoreBehind.make_durable

    def finish(self: StoreBehind, *arguments: Any) -> None:
        threading.Event().wait(0.3)
        plain(self, *arguments)
        slow.append("finished")

    monkeypatch.setattr(behind.StoreBehind, "make_durable", finish)
    task = toy_team.LetterTask(items=4, held_out=1)
    plain_reward = task.reward

    def reward(completions: list[list[str]], items: Any) -> list[float]:
        if len(slow) == 1:  # the second commit, the first epoch's, is under way
            raise KeyError("answer")
        return plain_reward(completions, items)

    task.reward = reward  # type: ignore[method-assign]
    with pytest.raises(InputError, match="raised KeyError"):
        toy_team.train(tmp_path, task=task, **SMALL)
    (run,) = list_runs(tmp_path / "runs")
    assert (len(slow), run.seq, run.state) == (2, 2, "stopped")
