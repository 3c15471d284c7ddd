"""`ratchet results`, `promote`, `watch`: what a research session has come to, and taking it over."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from ratchet.commands.project import enter_project, find_copy, print_json, print_table, say_next
from ratchet.copies import as_options, copies
from ratchet.core import atomic
from ratchet.core.errors import InputError

RESULTS = Path("data/iterate/results.tsv")
MAX_SAID = 8
DPI = 144
POLL_S = 0.25
LOOP = "iterate"


def results(path: Path, *, png: Path | None, lenient: bool, hits: int, as_json: bool) -> None:
    """Say what a ledger comes to, on one screen; ours or any that has the published columns."""
    from ratchet.tables import improvement, ledgers

    ledger = ledgers.read(path, lenient=lenient)
    course = improvement.course(ledger)
    if png is not None:
        from ratchet.report import progress_plot

        atomic.write_bytes(png, progress_plot.draw(course, dpi=DPI))
    if as_json:
        said = {"assumed": ledger.assumed, "left_out": ledger.left_out, "notes": course.notes}
        print_json({"file": str(path), **course.summary(hits), **said})
        return
    _print_said(path, ledger.assumed, ledger.left_out, course.notes)
    _print_course(course, hits)
    if png is not None:
        print(f"picture: {png}")
    else:
        say_next(f"ratchet results {path} --png progress.png{' --lenient' if lenient else ''}")


def ledger_file(file: Path | None, profile: str | None, overrides: Sequence[str]) -> Path:
    """The ledger that is meant: a file, a folder that has one, or that of the project or of a copy."""
    if file is None:
        project = enter_project()
        found = find_copy(project, profile, overrides) / RESULTS
        if not found.is_file():
            do = f"`ratchet run{as_options(profile, overrides)} --until iterate`, or name a file"
            raise InputError(found.relative_to(project), "no session has published yet", do)
        return found.relative_to(project)
    return file / "results.tsv" if file.is_dir() else file


def _print_said(path: Path, assumed: Sequence[str], left_out: Sequence[str], notes: Sequence[str]) -> None:
    print(path)
    for title, lines in (("assumed", assumed), ("left out", left_out), ("note", notes)):
        for line in lines[:MAX_SAID]:
            print(f"  {title}: {line}")
        if len(lines) > MAX_SAID:
            print(f"  {title}: and {len(lines) - MAX_SAID} more (--json has all)")


def _print_course(course: Any, hits: int) -> None:
    told = course.summary(hits)
    counts = (
        f"{told['kept']} kept ({told['progress']} better), {told['discarded']} discarded, {told['crashed']} crashed"
    )
    print(f"\n{told['experiments']} experiments: {counts}")
    for number, segment in enumerate(told["segments"], 1):
        which = f"baseline {number}, from row {segment['first']}" if len(told["segments"]) > 1 else "baseline"
        best = f"best {segment['best']:.6f} ({segment['best_commit'] or 'no commit'})"
        print(f"{which}: {segment['baseline']:.6f}; {best}, {segment['gain']:.6f} below it")
    if told["cost"] is not None:
        print(f"cost: {told['cost']:.4g}")
    if told["hits"]:
        print("\nlargest improvements")
        print_table(
            ("no.", "gain", "of all", "val_bpb", "commit", "what"),
            [
                (
                    hit["number"],
                    f"{hit['gain']:.6f}",
                    f"{100 * hit['share']:.0f} %",
                    f"{hit['val_bpb']:.6f}",
                    hit["commit"],
                    hit["description"][:100],
                )
                for hit in told["hits"]
            ],
        )
    print()


def promote(tag: str | None, *, force: bool) -> None:
    """Commit a session's best arena in the checkout. Raises InputError when that would lose or claim something."""
    from ratchet.loops.research import promotion
    from ratchet.tables.metrics import carries_over

    project = enter_project()
    session = promotion.find([project, *copies(project)], tag)
    done = promotion.promote(project, session, force=force)
    if done.commit is None:
        print(f"{done.arena} is already what session {session.told['tag']} ended with")
        return
    print(done.message)
    print(f"committed {done.commit[:10]}: {done.arena}, nothing else")
    if carries_over(session.metrics) is False:
        print("mind: the gain does not carry over to the test split", file=sys.stderr)
    say_next("ratchet run (trains and judges it; `git revert HEAD` takes it back)")


def watch(name: str | None) -> None:
    """Show a running session until it ends or Ctrl-C; once, when this is no terminal. Raises InputError."""
    from ratchet.commands.runs import running_one
    from ratchet.loops.research.board import Board
    from ratchet.loops.research.view import panel
    from ratchet.train.progress import read_live

    enter_project()
    folder = running_one(LOOP, "session", name).path
    live = read_live(folder)
    if live is None or "session" not in live:
        raise InputError(folder, "shows nothing yet", f"type `ratchet logs {LOOP} --follow`")
    console = Console()
    if not console.is_terminal:
        console.print(panel(Board.of(live)))
        return
    with Live(panel(Board.of(live)), console=console, auto_refresh=False) as screen:
        while (told := read_live(folder)) is not None:
            screen.update(panel(Board.of(told)), refresh=True)
            time.sleep(POLL_S)
    say_next("ratchet results", "ratchet status")
