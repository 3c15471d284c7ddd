"""Run directories `runs/<loop>/<fingerprint>/`: which run this is, whether it may continue, and who holds it.

Knows identities, the lock and the run's state; refuses to know what an identity is made of, except for two groups of
keys: `code…` (adopt_code) and device, device.kind, device.capability, …threads, …dtype (allow_inexact).
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ratchet.core import atomic
from ratchet.core.checkpoint import Resume, Store
from ratchet.core.errors import InputError
from ratchet.core.fingerprint import Change, differences, digest
from ratchet.core.ledger import Ledger

HEARTBEAT_S = 15.0
RunState = Literal["running", "finished", "stopped", "resumable", "damaged"]
_held: set[int] = set()
os.register_at_fork(after_in_child=lambda: [_release(descriptor) for descriptor in list(_held)])  # a fork is no owner


class RunInfo(NamedTuple):
    """One line of `ratchet status`. `seq`: commits; `steps`: `step` of its state, or `seq`; `pid`: its owner now;
    `age_s`: seconds since a sign of life. `resumable`: as it is, without giving up a damaged checkpoint."""

    loop: str
    path: Path
    fingerprint: str
    state: RunState
    seq: int
    age_s: float
    resumable: bool
    why: str
    pid: int | None
    steps: int


class RunDirectory:
    """An open run: this process holds its lock until `close`, or its own end. Use it in a `with`."""

    def __init__(self, path: Path, *, resume: Resume = "newest", keep_last: int = 2, keep_best: int = 0) -> None:
        self.path, self.loop, self.fingerprint, self.stop_file = path, path.parent.name, path.name, path / "stop"
        self._lock = _take_lock(path)
        self._closed = threading.Event()
        threading.Thread(target=self._beat, daemon=True, name="heartbeat").start()
        self.stop_file.unlink(missing_ok=True)
        self.ledger = Ledger(path / "ledger.jsonl")
        self.store = Store(
            path, keep_last, keep_best=keep_best, resume=resume, loop=self.loop, fingerprint=self.fingerprint
        )
        self.store.before_commit.append(lambda: (path / "end.json").unlink(missing_ok=True))

    def end(self, state: Literal["finished", "stopped"], why: str) -> None:
        """Mark the run: `finished` has reached its horizon, `stopped` can go on. The next commit removes the mark."""
        atomic.write_json(self.path / "end.json", {"state": state, "why": why})

    def close(self) -> None:
        """Give the lock back."""
        if not self._closed.is_set():
            self._closed.set()
            _release(self._lock)

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _beat(self) -> None:
        while not self._closed.wait(HEARTBEAT_S):
            os.utime(self.path / "lock")


def open_run(
    loop: str, identity: Mapping[str, Any], portable: Mapping[str, Any], *, runs: Path, resume: Resume = "newest",
    run: Path | None = None, adopt_code: bool = False, allow_inexact: bool = False,
    keep_last: int = 2, keep_best: int = 0,
) -> RunDirectory:  # fmt: skip
    """The run of `identity`: the one that has it continues, else a new one starts and stderr says what changed.

    `run` names a run that must continue: a difference raises InputError with the keys, old → new, and the ways out;
    `adopt_code` accepts changed code, `allow_inexact` another device kind, capability, thread count or dtype; both are
    recorded with the next commit, so that a run whose state then does not fit stays what it was. `portable` is
    recorded, never compared. Raises InputError with the owner's pid when a process holds it.
    """
    identity = atomic.plain(identity, loop)
    record: dict[str, Any] = {"loop": loop, "identity": identity, "adopted": [], "inexact": []}
    known = {path: read_identity(path) for path in ([run] if run else run_paths(runs, loop))}
    same = [path for path, old in known.items() if old["identity"] == identity]
    path = max(same, key=lambda path: (path / "identity.json").stat().st_mtime_ns, default=None)
    if path:
        record = known[path]
    elif run:
        path, record = run, _accept(run, known[run], record, adopt_code=adopt_code, allow_inexact=allow_inexact)
    else:
        path = _new_path(runs / loop / digest(identity)[:16])
        _say_fresh(loop, {path: differences(old["identity"], identity) for path, old in known.items()})
    path.mkdir(parents=True, exist_ok=True)
    opened = RunDirectory(path, resume=resume, keep_last=keep_last, keep_best=keep_best)
    write = partial(atomic.write_json, path / "identity.json", record | {"portable": dict(portable)})
    if run and not same:
        opened.store.before_commit.append(write)
    else:
        write()
    return opened


def _accept(
    run: Path, old: dict[str, Any], record: dict[str, Any], *, adopt_code: bool, allow_inexact: bool
) -> dict[str, Any]:
    """The record of `run` under its changed identity. Raises InputError when a change is not accepted."""
    changes = differences(old["identity"], record["identity"])
    code = {change.key for change in changes if change.key.split(".")[0] == "code"}
    inexact = {change.key for change in changes if _is_inexact(change.key)}
    refused = [c for c in changes if not (adopt_code and c.key in code) and not (allow_inexact and c.key in inexact)]
    if refused:
        groups = (("--adopt-code", code), ("--allow-inexact", inexact))
        ways = "".join(f"continue with {way}, " for way, keys in groups if keys & {change.key for change in refused})
        raise InputError(
            run, f"cannot continue, {_listed(refused)}", f"undo the change, {ways}or start under a new tag"
        )
    entries = [{"seq": inspect(run).seq} | change._asdict() for change in changes]
    adopted = [entry for entry in entries if entry["key"] in code]
    marked = [entry for entry in entries if entry["key"] in inexact]
    return record | {"adopted": [*old["adopted"], *adopted], "inexact": [*old["inexact"], *marked]}


def _is_inexact(key: str) -> bool:
    return key in ("device", "device.kind", "device.capability") or key.split(".")[-1] in ("threads", "dtype", "ranks")


def _listed(changes: Sequence[Change]) -> str:
    return "changed: " + ", ".join(str(change) for change in changes)


def _say_fresh(loop: str, known: Mapping[Path, list[Change]]) -> None:
    """Tell the difference to the nearest run, the one with the fewest changed keys."""
    if known:
        path, changes = min(known.items(), key=lambda item: len(item[1]))
        print(f"{loop}: starts fresh; against {path} {_listed(changes)}", file=sys.stderr, flush=True)


def _new_path(path: Path) -> Path:
    """`path`, or the first `path.N` not taken by a run that has adopted another identity since."""
    turns = (path if turn == 1 else path.with_name(f"{path.name}.{turn}") for turn in range(1, 1 << 30))
    return next(free for free in turns if not (free / "identity.json").exists())


def run_paths(runs: Path, loop: str = "*") -> list[Path]:
    """The run directories of `loop` (all loops) under `runs`, sorted."""
    return sorted(file.parent for file in runs.glob(f"{loop}/*/identity.json"))


def read_identity(path: Path) -> dict[str, Any]:
    """What `path` is: loop, identity, adopted, inexact, portable. Raises InputError when it is no run directory."""
    try:
        return json.loads((path / "identity.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise InputError(path, "is no run directory", "see `ratchet runs ls`") from None


def _take_lock(path: Path) -> int:
    """flock `path/lock` and sign it; the kernel drops it with the process, so a killed owner never blocks."""
    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    for patience in (0.05, 0.2, 0.0):  # a reader (`owner_of`) holds it for an instant
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(patience)
            continue
        os.pwrite(descriptor, f"{os.getpid()} {socket.gethostname()}".ljust(300).encode(), 0)
        _held.add(descriptor)
        return descriptor
    pid, host = os.pread(descriptor, 300, 0).decode().split()
    os.close(descriptor)
    raise InputError(path, f"is in use by pid {pid} on {host}", "wait for it, or end it with `ratchet stop`")


def _release(descriptor: int) -> None:
    if descriptor in _held:
        _held.discard(descriptor)
        os.close(descriptor)


def owner_of(path: Path) -> int | None:
    """The pid of the process that holds the run `path` now, or None."""
    try:
        descriptor = os.open(path / "lock", os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return int(os.pread(descriptor, 300, 0).split()[0])
    finally:
        os.close(descriptor)
    return None


def request_stop(path: Path) -> None:
    """Ask the run `path` to end after its present step: its budget looks for this file."""
    (path / "stop").touch()


def inspect(path: Path) -> RunInfo:
    """The state of the run `path`, without changing it and without reading a blob."""
    seq, steps, state, why = 0, 0, "resumable", "killed or crashed"
    pid, store, end = owner_of(path), Store(path), path / "end.json"
    try:
        if head := store.head():
            metadata = store.verify(*head, hashes=False)
            seq, steps = head[0], metadata["state"].get("step", head[0])
    except InputError as error:
        state, why = "damaged", str(error)
    if pid:
        state, why = "running", f"pid {pid} holds it"
    elif state != "damaged" and end.exists():
        state, why = json.loads(end.read_text(encoding="utf-8")).values()
    signs = [path / name for name in ("HEAD", "ledger.jsonl", "identity.json", *(["lock"] if pid else []))]
    age_s = max(0.0, time.time() - max(sign.stat().st_mtime for sign in signs if sign.exists()))
    resumable = state in ("resumable", "stopped")
    return RunInfo(path.parent.name, path, path.name, state, seq, age_s, resumable, why, pid, steps)


def list_runs(runs: Path) -> list[RunInfo]:
    """Every run under `runs`, by loop, the latest first."""
    return sorted(map(inspect, run_paths(runs)), key=lambda info: (info.loop, info.age_s))


def remove(path: Path) -> None:
    """Remove the run `path`. Raises InputError when it is no run or a process holds it."""
    read_identity(path)
    descriptor = _take_lock(path)
    atomic.remove_folder(path)
    _release(descriptor)


def gc(runs: Path, *, finished: bool = False, superseded: bool = False) -> list[Path]:
    """Free space and return what went: of every run not in use all checkpoints but the newest good one; whole runs
    only when asked: `finished` ones, or those `superseded` by a later run of their loop."""
    freed: list[Path] = []
    infos = list_runs(runs)
    newest = {info.loop: info.path for info in reversed(infos)}
    for info in (info for info in infos if not info.pid):
        if (finished and info.state == "finished") or (superseded and newest[info.loop] != info.path):
            remove(info.path)
            freed.append(info.path)
            continue
        descriptor = _take_lock(info.path)
        freed += Store(info.path, 1).keep_newest_good()
        _release(descriptor)
    return freed
