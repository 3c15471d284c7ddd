"""Run directories: which identity continues where, the lock between processes, states, removal and gc."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ratchet.core import rundir
from ratchet.core.budget import Budget
from ratchet.core.errors import InputError
from ratchet.core.loop import Outcome, drive
from ratchet.core.rundir import RunDirectory, gc, inspect, list_runs, open_run, owner_of, remove, request_stop

IDENTITY: dict[str, Any] = {
    "params": {"lr": 0.1, "dtype": "float32"},
    "inputs": {"rows": "aaa"},
    "code": {"arena": "c1", "trainer": "c2"},
    "constraints": "ccc",
    "device": {"kind": "cpu", "capability": "AVX2", "threads": 2, "torch": "2.13.0"},
}


def changed(**dotted: Any) -> dict[str, Any]:
    identity = json.loads(json.dumps(IDENTITY))
    for key, value in dotted.items():
        group, _, name = key.partition("__")
        if name:
            identity[group][name] = value
        else:
            identity[group] = value
    return identity


def counted(run: RunDirectory, steps: int) -> None:
    drive({"x": 0}, lambda seq, state: Outcome({"x": state["x"] + 1}, {"x": state["x"]}, {"blob": _write}),
          store=run.store, ledger=run.ledger, budget=Budget(steps=steps, stop_file=run.stop_file))  # fmt: skip


def _write(path: Path) -> None:
    path.write_text("weights")


def made(runs: Path, identity: dict[str, Any] = IDENTITY, steps: int = 3, *, end: Any = None) -> Path:
    with open_run("toy", identity, {}, runs=runs) as run:
        counted(run, steps)
        if end:
            run.end(end, "because")
        return run.path


def test_open_run_same_identity_continues_in_the_same_folder(tmp_path: Path) -> None:
    path = made(tmp_path)
    with open_run("toy", dict(reversed(IDENTITY.items())), {"stop_at": 5}, runs=tmp_path) as run:
        assert run.path == path
        assert path.parent == tmp_path / "toy"
        assert run.store.load() == (3, {"x": 3})
    assert json.loads((path / "identity.json").read_text())["portable"] == {"stop_at": 5}


def test_open_run_changed_identity_starts_fresh_and_says_what_changed_against_the_nearest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    far = made(tmp_path, changed(params__lr=0.3, inputs__rows="zzz"))
    near = made(tmp_path)
    capsys.readouterr()
    with open_run("toy", changed(params__lr=0.2), {}, runs=tmp_path) as run:
        assert run.store.load() is None
        assert run.path not in (near, far)
    said = capsys.readouterr().err
    assert f"against {near} changed: params.lr 0.1 → 0.2\n" in said
    assert "inputs" not in said


def test_open_run_first_run_of_a_loop_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path)
    assert capsys.readouterr().err == ""


CHANGES = {
    "data": changed(inputs__rows="bbb"),
    "params": changed(params__lr=0.2),
    "arena code": changed(code__arena="c9"),
    "constraints": changed(constraints="ddd"),
    "torch": changed(device__torch="2.14.0"),
    "threads": changed(device__threads=4),
    "device kind": changed(device__kind="cuda"),
    "dtype": changed(params__dtype="bfloat16"),
    "new key": changed(extra=1),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_open_run_explicit_run_refuses_any_difference_with_old_and_new(kind: str, tmp_path: Path) -> None:
    path = made(tmp_path)
    with pytest.raises(InputError) as caught:
        open_run("toy", CHANGES[kind], {}, runs=tmp_path, run=path)
    assert re.search(
        r"cannot continue, changed: \S+ .+ → .+; undo the change, .*or start under a new tag", str(caught.value)
    )
    assert ("--adopt-code" in str(caught.value)) == (kind == "arena code")
    assert ("--allow-inexact" in str(caught.value)) == (kind in ("threads", "device kind", "dtype"))


def test_open_run_explicit_run_with_the_same_identity_continues(tmp_path: Path) -> None:
    path = made(tmp_path)
    with open_run("toy", IDENTITY, {"device_index": 3}, runs=tmp_path, run=path) as run:
        assert run.store.load() == (3, {"x": 3})


def test_mutant_any_config_resumes_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rundir, "differences", lambda old, new: [])
    with pytest.raises(pytest.fail.Exception):
        test_open_run_explicit_run_refuses_any_difference_with_old_and_new("params", tmp_path)


def test_mutant_one_folder_for_all_identities_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rundir, "_new_path", lambda path: path.with_name("run"))
    with pytest.raises((AssertionError, InputError)):
        test_open_run_changed_identity_starts_fresh_and_says_what_changed_against_the_nearest(tmp_path, capsys)


def test_open_run_adopt_code_continues_records_both_hashes_and_only_takes_code(tmp_path: Path) -> None:
    path = made(tmp_path)
    new = changed(code__arena="c9")
    with open_run("toy", new, {}, runs=tmp_path, run=path, adopt_code=True) as run:
        counted(run, 4)
    record = json.loads((path / "identity.json").read_text())
    assert record["adopted"] == [{"seq": 3, "key": "code.arena", "old": "c1", "new": "c9"}]
    assert record["identity"] == new
    with open_run("toy", new, {}, runs=tmp_path) as run:  # the same identity finds it without being told
        assert run.path == path
    with pytest.raises(InputError, match=r"changed: params\.lr"):
        open_run("toy", new | {"params": {"lr": 9}}, {}, runs=tmp_path, run=path, adopt_code=True, allow_inexact=True)
    with open_run("toy", IDENTITY, {}, runs=tmp_path) as run:  # the old code's own folder is taken: a fresh one beside
        assert run.path == path.with_name(f"{path.name}.2")
        assert run.store.load() is None


def test_open_run_adopted_identity_is_not_recorded_before_the_run_has_gone_on(tmp_path: Path) -> None:
    """What a step raises before the first commit (an arena that does not fit) leaves the run to its old code."""
    path = made(tmp_path, end="stopped")
    before = (path / "identity.json").read_bytes()

    def failing(seq: int, state: dict[str, Any]) -> Outcome:
        raise InputError("arena", "does not fit", "mend it")

    adopting = open_run("toy", changed(code__arena="c9"), {}, runs=tmp_path, run=path, adopt_code=True)
    with adopting as run, pytest.raises(InputError, match="does not fit"):
        drive({}, failing, store=run.store, ledger=run.ledger, budget=Budget(steps=9))
    assert (path / "identity.json").read_bytes() == before
    assert inspect(path).why == "because"
    with open_run("toy", IDENTITY, {}, runs=tmp_path) as run:
        assert run.path == path
        counted(run, 5)


@pytest.mark.parametrize("kind", ["threads", "device kind", "dtype"])
def test_open_run_allow_inexact_continues_and_marks_the_run(kind: str, tmp_path: Path) -> None:
    path = made(tmp_path)
    with open_run("toy", CHANGES[kind], {}, runs=tmp_path, run=path, allow_inexact=True) as run:
        assert run.store.load() == (3, {"x": 3})
        counted(run, 4)
    marks = json.loads((path / "identity.json").read_text())["inexact"]
    assert [(mark["seq"], mark["old"] != mark["new"]) for mark in marks] == [(3, True)]


@pytest.mark.parametrize("kind", ["torch", "params", "data", "arena code"])
def test_open_run_allow_inexact_takes_nothing_else(kind: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot continue"):
        open_run("toy", CHANGES[kind], {}, runs=tmp_path, run=made(tmp_path), allow_inexact=True)


def test_open_run_horizon_kind_is_no_device_kind(tmp_path: Path) -> None:
    path = made(tmp_path, {"params": {"horizon": {"kind": "steps"}}})
    with pytest.raises(InputError, match=r"params\.horizon\.kind"):
        open_run("toy", {"params": {"horizon": {"kind": "epochs"}}}, {}, runs=tmp_path, run=path, allow_inexact=True)


def test_open_run_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no run directory"):
        open_run("toy", IDENTITY, {}, runs=tmp_path, run=tmp_path / "elsewhere")


def test_open_run_two_runs_of_one_identity_takes_the_one_opened_last(tmp_path: Path) -> None:
    old, new = made(tmp_path), made(tmp_path, changed(code__arena="c9"), steps=1)
    with open_run("toy", changed(code__arena="c9"), {}, runs=tmp_path, run=old, adopt_code=True) as run:
        counted(run, 4)
    for last in (old, new):
        os.utime(last / "identity.json")
        with open_run("toy", changed(code__arena="c9"), {}, runs=tmp_path) as run:
            assert run.path == last


def test_inspect_tells_steps_by_the_state_when_it_counts_them(tmp_path: Path) -> None:
    with open_run("train", IDENTITY, {}, runs=tmp_path) as run:
        run.store.commit(2, {"step": 50}, {})
        run.ledger.put(0, {})
    assert (inspect(run.path).seq, inspect(run.path).steps) == (2, 50)
    assert inspect(made(tmp_path)).steps == 3


def test_open_run_moved_runs_folder_continues(tmp_path: Path) -> None:
    made(tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "ñew place")
    with open_run("toy", IDENTITY, {}, runs=tmp_path / "ñew place") as run:
        assert run.store.load() == (3, {"x": 3})


# The lock

HOLDER = """
import sys, time
from pathlib import Path
from ratchet.core.rundir import open_run
run = open_run("toy", {"a": 1}, {}, runs=Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""
SECOND = """
import sys
from pathlib import Path
from ratchet.core.rundir import open_run
from ratchet.stage import guarded
sys.exit(guarded("second", lambda: open_run("toy", {"a": 1}, {}, runs=Path(sys.argv[1])).close()))
"""


@pytest.fixture
def holder(tmp_path: Path) -> Any:
    """Another process that holds the run of `{"a": 1}`."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_lock_second_process_exits_2_with_one_line_naming_the_owners_pid(holder: Any, tmp_path: Path) -> None:
    second = subprocess.run([sys.executable, "-c", SECOND, str(tmp_path)], capture_output=True, text=True, check=False)
    assert second.returncode == 2
    assert f"is in use by pid {holder.pid} on " in second.stderr
    assert second.stderr.count("\n") == 1
    (info,) = list_runs(tmp_path)
    assert (info.state, info.pid, info.resumable) == ("running", holder.pid, False)


def test_lock_killed_owner_never_blocks(holder: Any, tmp_path: Path) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert list_runs(tmp_path)[0].state == "resumable"
    with open_run("toy", {"a": 1}, {}, runs=tmp_path) as run:
        assert owner_of(run.path) == os.getpid()
    assert owner_of(run.path) is None


def test_lock_two_opens_in_one_process_exclude_each_other(tmp_path: Path) -> None:
    with open_run("toy", IDENTITY, {}, runs=tmp_path), pytest.raises(InputError, match=f"pid {os.getpid()}"):
        open_run("toy", IDENTITY, {}, runs=tmp_path)
    open_run("toy", IDENTITY, {}, runs=tmp_path).close()


def test_lock_forked_child_that_outlives_its_parent_does_not_hold_it(tmp_path: Path) -> None:
    with open_run("toy", IDENTITY, {}, runs=tmp_path):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
    try:
        open_run("toy", IDENTITY, {}, runs=tmp_path).close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_lock_heartbeat_keeps_a_silent_owner_young(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rundir, "HEARTBEAT_S", 0.02)
    with open_run("toy", IDENTITY, {}, runs=tmp_path) as run:
        for file in run.path.iterdir():
            os.utime(file, (1, 1))
        deadline = time.monotonic() + 20
        while inspect(run.path).age_s > 10:
            assert time.monotonic() < deadline
            time.sleep(0.02)


# States, stop, remove, gc


def test_list_runs_tells_finished_stopped_resumable_and_damaged(tmp_path: Path) -> None:
    expected = {
        made(tmp_path, changed(params__lr=1), end="finished"): ("finished", 3, False, "because"),
        made(tmp_path, changed(params__lr=2), end="stopped"): ("stopped", 3, True, "because"),
        made(tmp_path, changed(params__lr=3)): ("resumable", 3, True, "killed or crashed"),
    }
    damaged = made(tmp_path, changed(params__lr=4), end="finished")
    (damaged / "checkpoints" / "00000003" / "blob").write_text("w")
    found = {info.path: (info.state, info.seq, info.resumable, info.why) for info in list_runs(tmp_path)}
    state, _, resumable, why = found.pop(damaged)
    assert found == expected
    assert (state, resumable) == ("damaged", False)
    assert "blob: has 1 bytes, not 7" in why


def test_list_runs_changes_nothing_and_survives_no_runs_folder(tmp_path: Path) -> None:
    path = made(tmp_path)
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    list_runs(tmp_path)
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == before
    assert list_runs(tmp_path / "none") == []


def test_open_run_takes_an_old_stop_request_away_and_the_first_commit_the_end_mark(tmp_path: Path) -> None:
    path = made(tmp_path, end="finished")
    request_stop(path)
    with open_run("toy", IDENTITY, {}, runs=tmp_path) as run:
        counted(run, 3)
    assert inspect(path).state == "finished"
    with open_run("toy", IDENTITY, {}, runs=tmp_path) as run:
        counted(run, 4)
    assert (inspect(path).state, inspect(path).seq) == ("resumable", 4)


def test_request_stop_ends_the_loop_after_the_present_step(tmp_path: Path) -> None:
    with open_run("toy", IDENTITY, {}, runs=tmp_path) as run:

        def step(seq: int, state: dict[str, Any]) -> Outcome:
            if seq == 2:
                request_stop(run.path)
            return Outcome(state, {})

        drive({}, step, store=run.store, ledger=run.ledger, budget=Budget(steps=9, stop_file=run.stop_file))
    assert inspect(run.path).seq == 3


def test_remove_frees_a_run_but_not_one_in_use_nor_a_folder_that_is_none(tmp_path: Path) -> None:
    path = made(tmp_path)
    with open_run("toy", IDENTITY, {}, runs=tmp_path), pytest.raises(InputError, match="is in use by pid"):
        remove(path)
    with pytest.raises(InputError, match="is no run directory"):
        remove(tmp_path)
    remove(path)
    assert list_runs(tmp_path) == []
    assert list((tmp_path / "toy").iterdir()) == []


def test_gc_keeps_the_newest_good_checkpoint_of_every_run(tmp_path: Path) -> None:
    one, two = made(tmp_path), made(tmp_path, changed(params__lr=2), end="finished")
    (two / "checkpoints" / "00000003" / "blob").write_text("damage!")
    freed = gc(tmp_path)
    assert sorted(freed) == sorted([one / "checkpoints" / "00000002", two / "checkpoints" / "00000003"])
    assert {info.seq for info in list_runs(tmp_path)} == {3, 0}
    with open_run("toy", changed(params__lr=2), {}, runs=tmp_path, resume="auto") as run:
        assert run.store.load() == (2, {"x": 2})


@pytest.mark.parametrize(
    ("asked", "left"),
    [
        ({}, {"first", "second", "third"}),
        ({"finished": True}, {"second", "third"}),
        ({"superseded": True}, {"third"}),
    ],
)
def test_gc_removes_whole_runs_only_when_asked(asked: dict[str, bool], left: set[str], tmp_path: Path) -> None:
    paths: dict[str, Path] = {}
    for age, name in enumerate(("third", "second", "first")):
        paths[name] = made(tmp_path, changed(params__lr=name), end="finished" if name == "first" else None)
        for file in paths[name].iterdir():
            os.utime(file, (time.time() - 100 * age,) * 2)
    gc(tmp_path, **asked)
    assert {name for name, path in paths.items() if path.exists()} == left


def test_gc_leaves_a_run_in_use_alone(tmp_path: Path) -> None:
    with open_run("toy", IDENTITY, {}, runs=tmp_path) as run:
        counted(run, 3)
        assert gc(tmp_path, finished=True, superseded=True) == []


def test_drive_refuses_a_ledger_that_lost_rows_behind_a_checkpoint(tmp_path: Path) -> None:
    path = made(tmp_path)
    rows = (path / "ledger.jsonl").read_text().splitlines(keepends=True)
    (path / "ledger.jsonl").write_text("".join(rows[:2]))
    with open_run("toy", IDENTITY, {}, runs=tmp_path) as run, pytest.raises(InputError, match="holds 2 good rows"):
        counted(run, 4)


def test_drive_state_is_the_same_object_of_json_before_and_after_a_resume(tmp_path: Path) -> None:
    seen: list[Any] = []

    def step(seq: int, state: dict[str, Any]) -> Outcome:
        seen.append(state)
        return Outcome({"pair": (1, 2), "table": {3: "x"}}, {"pair": (1, 2)})

    drives: Callable[[RunDirectory], Any] = lambda run: drive(  # noqa: E731
        {"pair": (1, 2)}, step, store=run.store, ledger=run.ledger, budget=Budget(steps=len(seen) + 2)
    )
    with open_run("toy", IDENTITY, {}, runs=tmp_path) as run:
        drives(run)
    with open_run("toy", IDENTITY, {}, runs=tmp_path) as run:
        drives(run)
    assert seen == [{"pair": [1, 2]}, *[{"pair": [1, 2], "table": {"3": "x"}}] * 3]
