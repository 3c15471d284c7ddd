"""`ratchet runs`, `logs`, `stop`: run directories and stage logs as a person names them."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from ratchet.commands.project import STAGE_LOGS, duration, enter_project, find_copy, print_json, print_table, say_next
from ratchet.copies import options_of
from ratchet.core import rundir
from ratchet.core.errors import InputError
from ratchet.core.ledger import Ledger
from ratchet.core.rundir import RunInfo
from ratchet.settings import settings

EXPERIMENT = re.compile(r"iterate/(\d{1,6})")
"""A number is no fingerprint, which has 16 letters."""


def find_run(name: str, runs: Path) -> RunInfo:
    """The run that `name` means: its folder, its loop (the latest run of it), or the start of its fingerprint.

    Raises InputError when none or several fit.
    """
    there = rundir.list_runs(runs)
    wanted = name.rstrip("/")
    by_path = [run for run in there
               if wanted in (str(run.path), str(run.path.resolve()), f"{run.loop}/{run.fingerprint}")]  # fmt: skip
    by_loop = [run for run in there if run.loop == wanted][:1]
    by_start = [run for run in there if run.fingerprint.startswith(wanted)]
    for found in (by_path, by_loop, by_start):
        if len(found) == 1:
            return found[0]
    several = ", ".join(f"{run.loop}/{run.fingerprint}" for run in by_start)
    what = f"{name!r} fits several runs: {several}" if by_start else f"no run {name!r}"
    raise InputError("runs", what, "see `ratchet runs ls`")


def running(loop: str | None) -> list[RunInfo]:
    """The runs of `loop` (None: of any) that go on now, the latest first."""
    return [run for run in rundir.list_runs(settings().runs) if run.state == "running" and loop in (None, run.loop)]


def run_of(loop: str | None, work: str, name: str) -> RunInfo:
    """The run that `name` means. Raises InputError when it is none, or not of `loop` (None: of any).

    `work`: what a run of this loop is called."""
    found = find_run(name, settings().runs)
    if loop not in (None, found.loop):
        what = f"{found.loop}/{found.fingerprint} is no {work} of {loop}"
        raise InputError("runs", what, f"name one of {loop}, see `ratchet runs ls`")
    return found


def running_one(loop: str | None, work: str, name: str | None) -> RunInfo:
    """The run that `name` means, or the one of `loop` (None: of any) that goes on. Raises InputError when that is none
    or several.

    `work`: what a run of this loop is called."""
    if name is not None:
        return run_of(loop, work, name)
    found = running(loop)
    if len(found) != 1:
        names = ", ".join(f"{run.loop}/{run.fingerprint}" for run in found) or "none"
        raise InputError(loop or "runs", f"which {work}? running: {names}", "name one, or see `ratchet status`")
    return found[0]


def describe(run: RunInfo) -> dict[str, Any]:
    """A run for a program or a table; `live`: its last shown step and what is left, while it runs."""
    from ratchet.train.progress import read_live

    live = read_live(run.path) if run.state == "running" else None
    return {**run._asdict(), "path": str(run.path), "bytes": size(run.path), "live": live}


def cells(row: Mapping[str, Any]) -> tuple[str, str, str, str, str]:
    """A row of `describe` as a table shows it: run, state, steps, age, and what else there is to say."""
    steps, why = str(row["steps"]), row["why"]
    if live := row["live"]:
        left = duration(live["seconds_left"])
        tries = "".join(f"; tries {attempt['description']}" for attempt in live.get("attempts", {}).values())
        steps, why = f"{live['step']} of {live['stop_step']}", f"{why}, {left} left; step {steps} is saved{tries}"
    return f"{row['loop']}/{row['fingerprint']}", row["state"], steps, duration(row["age_s"]), why


def size(folder: Path) -> int:
    """Bytes of the files below `folder`."""
    return sum(item.stat().st_size for item in folder.rglob("*") if item.is_file())


def ls(*, as_json: bool) -> None:
    """Every run, the latest of each loop first."""
    enter_project()
    rows = [describe(run) for run in rundir.list_runs(settings().runs)]
    if as_json:
        print_json(rows)
    elif not rows:
        print("no runs yet")
        say_next("ratchet run")
    else:
        print_table(
            ("run", "state", "steps", "age", "MB", ""),
            [(*shown, f"{row['bytes'] / 1e6:.1f}", why) for row in rows for *shown, why in [cells(row)]],
        )


def rm(names: Sequence[str]) -> None:
    """Remove runs with their checkpoints; published results stay."""
    enter_project()
    for run in [find_run(name, settings().runs) for name in names]:
        freed = size(run.path)
        rundir.remove(run.path)
        print(f"removed {run.path}, {freed / 1e6:.1f} MB")


def gc(*, finished: bool, superseded: bool) -> None:
    """Free space; the newest good checkpoint of a run that stays is never removed."""
    enter_project()
    runs = settings().runs
    before = size(runs) if runs.is_dir() else 0
    freed = rundir.gc(runs, finished=finished, superseded=superseded)
    after = size(runs) if runs.is_dir() else 0
    print(f"freed {(before - after) / 1e6:.1f} MB: {len(freed)} checkpoints or runs")


def stop(name: str | None) -> None:
    """Ask a run to commit and end after its present step."""
    enter_project()
    run = running_one(None, "run", name)
    if run.state != "running":
        raise InputError(run.path, f"does not run: {run.state}, {run.why}", "see `ratchet runs ls`")
    rundir.request_stop(run.path)
    print(f"asked {run.loop}/{run.fingerprint} (pid {run.pid}) to commit and end after its present step")
    say_next(f"ratchet resume {run.loop}/{run.fingerprint}{options_of(_folder_of(run.pid))}")


def _folder_of(pid: int | None) -> Path:
    """Where the process that holds a run works: the project, or a copy, which `resume` must then be told."""
    try:
        return Path(psutil.Process(pid).cwd())
    except psutil.Error:
        return Path()


def logs(name: str, *, count: int, follow: bool, profile: str | None, overrides: Sequence[str]) -> None:
    """The last `count` lines of a stage's or a run's log, and with `follow` what comes after, until Ctrl-C."""
    project = enter_project()
    path = log_of(name, find_copy(project, profile, overrides))
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file.readlines()[-count:]:
            sys.stdout.write(line)
        sys.stdout.flush()
        while follow:
            text = file.read()
            if text:
                sys.stdout.write(text)
                sys.stdout.flush()
            else:
                time.sleep(0.3)


def log_of(name: str, where: Path) -> Path:
    """The log that `name` means: of the last flow run of a stage in `where`, the project or a copy of it, else of a
    run; `iterate/7` means experiment 7 of the latest session. Raises InputError."""
    if found := EXPERIMENT.fullmatch(name):
        return _experiment_log(int(found.group(1)), where)
    stage = where / STAGE_LOGS / f"{name}.log"
    if stage.is_file():
        return stage
    run = find_run(name, settings().runs)
    for log in _by_age(run.path.glob("*.log")):
        return log
    raise InputError(run.path, "has no log", "its ledger is ledger.jsonl")


def _experiment_log(number: int, where: Path) -> Path:
    """What experiment `number` printed: in the latest session's run directory, or where it was published."""
    runs = [run.path for run in rundir.list_runs(settings().runs) if run.loop == "iterate"]
    for run in runs[:1]:
        rows = Ledger(run / "ledger.jsonl").rows()
        keys = {entry["number"]: entry["key"] for row in rows for entry in row.get("entries", ())}
        log = run / "work" / (keys.get(number) or "-") / "run.log"
        if log.is_file():
            return log
        if number == max(keys, default=-1) + 1:  # under way, and in no row yet
            for newest in _by_age(run.glob("work/*/run.log")):
                return newest
    published = where / f"data/iterate/experiments/{number}/run.log"
    if not published.is_file():
        raise InputError(
            f"iterate/{number}", "has no log: it was not trained, or is not there", "see `ratchet results`"
        )
    return published


def _by_age(paths: Iterable[Path]) -> list[Path]:
    """The newest first."""
    return sorted(paths, key=lambda item: item.stat().st_mtime, reverse=True)


def mirror(name: str) -> None:
    """Send what the W&B run of the team training `name` lacks. Raises InputError for another loop's run, which sends
    what is missing when it is resumed."""
    enter_project()
    run = find_run(name, settings().runs)
    if run.loop != "team":
        what = f"{run.loop}/{run.fingerprint} is a run of {run.loop}"
        raise InputError("wandb", what, f"type `ratchet resume {name}`: it sends what is missing")
    from ratchet.loops.team.mirror import mirror_again

    rows = mirror_again(run.path, settings())
    print(f"wandb: the run of {run.path} holds {rows} rows")
