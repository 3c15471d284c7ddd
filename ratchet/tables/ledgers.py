"""Read the ledger of any research loop of this kind: the published five columns, in whatever shape people keep them.

Says what it had to assume. Refuses to guess silently: a line that is no row of the table is a fault named by its
number, or, when asked to be lenient, left out and listed.
"""

from __future__ import annotations

import codecs
import difflib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from ratchet.core.errors import InputError
from ratchet.tables import columns, ledger_lines, ledger_words, results
from ratchet.tables.conform import TableError
from ratchet.tables.ledger_lines import Layout, Lines
from ratchet.tables.ledger_words import CRASH, DISCARD

MB_PER_GB = 1024.0
STRICT_DO = "mend it, or add `--lenient` to read what is readable and see the rest listed"


@dataclass(frozen=True)
class Ledger:
    """A ledger that was read. `table`: line (of the file), commit, val_bpb (NaN: no score), memory_gb, status (keep,
    discard, crash), description, baseline (whether its row says so); then every other column, as text.

    `assumed`: what reading had to suppose, a sentence each. `left_out`: the lines that are no row, each with why.
    """

    table: pd.DataFrame
    assumed: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass
class _Notes:
    faults: list[str] = field(default_factory=list[str])
    assumed: list[str] = field(default_factory=list[str])


def read(path: Path, *, lenient: bool = False) -> Ledger:
    """The ledger in `path`, ours or another's. Raises InputError (missing, no text, no header, no row) or TableError
    naming every line that is no row, unless `lenient`."""
    text, notes = _text(path)
    layout = _layout(text, path, notes)
    if layout.names == list(results.SCHEMA.columns) and not lenient:
        return ours(results.read(path))
    lines = Lines(layout, lenient=lenient)
    rows = lines.rows(text)
    table = _table(layout, rows, notes, lines.faults, lenient=lenient)
    left_out = sorted(lines.faults + notes.faults, key=ledger_lines.line_of)
    if left_out and not lenient:
        raise TableError(path, left_out, STRICT_DO)
    if table.empty:
        what = "no line of it is a row" if left_out else f"holds only a header: {results.EMPTY}"
        raise InputError(path, what, "see the log of the session that wrote it")
    return Ledger(table, tuple(notes.assumed + lines.assumed), tuple(left_out))


def ours(table: pd.DataFrame) -> Ledger:
    """A table that `ratchet.tables.results` has read, as a ledger."""
    known = table.assign(
        line=range(2, len(table) + 2), baseline=table["parent"].isna() & (table["status"] == ledger_words.KEEP)
    )
    return Ledger(known[["line", *results.PUBLISHED, "baseline", *list(results.SCHEMA.columns)[5:]]])


def _text(path: Path) -> tuple[list[str], _Notes]:
    """The lines of `path`, without their ends."""
    notes = _Notes()
    try:
        data = path.read_bytes()
    except (FileNotFoundError, IsADirectoryError):
        raise InputError(path, "no such file", "name a results.tsv") from None
    encoding = "utf-8-sig"
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
        notes.assumed.append("read as UTF-16, as its first bytes say")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise InputError(path, f"not UTF-8 at byte {error.start}", "save it as UTF-8") from None
    if not text.strip("\ufeff \t\r\n\0"):
        raise InputError(path, f"is empty: {results.EMPTY}", "see the log of the session that wrote it")
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), notes


def _layout(text: list[str], path: Path, notes: _Notes) -> Layout:
    """Which line names the columns, and which column is which of the published ones."""
    found = ledger_lines.find_header(text)
    if found is None:
        header = columns_of_first(text)
        columns.find(pd.DataFrame(columns=header), *ledger_words.NAMES["val_bpb"], where=path)
        columns.find(pd.DataFrame(columns=header), *ledger_words.NAMES["status"], where=path)
        raise InputError(path, "no line names the columns", f"begin it with {' '.join(results.PUBLISHED)}, tab between")
    layout = found
    if not layout.has_header:
        notes.assumed.append(f"no header: columns taken as {', '.join(layout.names)}")
    for name, at in layout.places.items():
        if layout.names[at] != name:
            notes.assumed.append(f"column {layout.names[at]!r} read as {name}")
    if missing := [name for name in results.PUBLISHED if name not in layout.places]:
        notes.assumed.append(f"no column for {', '.join(missing)}: left empty")
    return layout


def columns_of_first(text: Iterable[str]) -> list[str]:
    """The cells of the first line that is not blank."""
    first = next(line for line in text if line.strip())
    return [cell.strip() for cell in ledger_lines.split(first, ledger_lines.delimiter_of(first))]


def _table(
    layout: Layout, rows: Sequence[tuple[int, list[str]]], notes: _Notes, faults: list[str], *, lenient: bool
) -> pd.DataFrame:
    """The rows whose cells are readable, as a Ledger's table."""
    values = _Values(layout, notes, lenient=lenient)
    kept = [(line, cells, *read) for line, cells in rows if (read := values.of(line, cells)) is not None]
    values.say()
    at = layout.places
    table = pd.DataFrame(
        {
            "line": pd.Series([row[0] for row in kept], dtype="int64"),
            "commit": [_cell(row[1], at.get("commit")) for row in kept],
            "val_bpb": pd.Series([row[2] for row in kept], dtype="float64"),
            "memory_gb": pd.Series([row[3] for row in kept], dtype="float64"),
            "status": [row[4] for row in kept],
            "description": [_cell(row[1], at.get("description")) for row in kept],
            "baseline": pd.Series([ledger_words.is_baseline(row[1][at["status"]]) for row in kept], dtype=bool),
        }
    )
    others = {name: place for place, name in enumerate(layout.names) if place not in at.values()}
    for name, place in others.items():
        table[name if name not in table else f"{name} (column {place + 1})"] = [_cell(row[1], place) for row in kept]
    _say_repeats(table, notes)
    return table


def _cell(cells: list[str], place: int | None) -> str:
    if place is None:
        return ""
    cell = cells[place]
    return cell if cell.isalnum() else results.one_line(cell)  # the common case, ten times as fast


def _say_repeats(table: pd.DataFrame, notes: _Notes) -> None:
    counts = Counter(commit for commit in table["commit"] if commit)
    if repeated := [f"{commit} ({rows} rows)" for commit, rows in counts.items() if rows > 1]:
        more = f" and {len(repeated) - 3} more" if len(repeated) > 3 else ""
        notes.assumed.append(
            f"the same commit in several rows, each its own experiment: {', '.join(repeated[:3])}{more}"
        )


class _Values:
    """Reads score, memory and status of one row after the other, and remembers what it had to suppose."""

    def __init__(self, layout: Layout, notes: _Notes, *, lenient: bool) -> None:
        self._at, self._notes, self._lenient = layout.places, notes, lenient
        self._in_mb = (
            "memory_gb" in self._at and _plain_name(layout.names[self._at["memory_gb"]]) in ledger_words.MEGABYTES
        )
        self._statuses: Counter[tuple[str, str]] = Counter()
        self._known: dict[tuple[str, bool], str | None] = {}
        self._said: dict[str, list[int]] = {}

    def of(self, line: int, cells: list[str]) -> tuple[float | None, float | None, str] | None:
        """val_bpb, memory_gb, status; None for a row that is not readable, which is then a fault."""
        written = cells[self._at["status"]].strip()
        try:
            score = self._number(line, cells[self._at["val_bpb"]].strip(), small=True)
        except ValueError:
            self._notes.faults.append(
                f"line {line}: val_bpb is {_short(cells[self._at['val_bpb']])}, which is no number"
            )
            return None
        if score is not None and score < 0:
            self._notes.faults.append(f"line {line}: val_bpb is {score:g}, below 0")
            return None
        status = self._status(line, written, scored=bool(score))
        if status is None:
            return None
        return self._judged(line, score, status, cells)

    def _judged(
        self, line: int, score: float | None, status: str, cells: list[str]
    ) -> tuple[float | None, float | None, str]:
        if score == 0:
            self._say("a val_bpb of 0 is no score: read as a crash", line)
        elif score is None and status != CRASH:
            self._say("no val_bpb: read as a crash", line)
        elif score is not None and status == CRASH:
            self._say("a crash has no score: its val_bpb is passed over", line)
        if not score or status == CRASH:
            return None, self._memory(line, cells), CRASH
        return score, self._memory(line, cells), status

    def _memory(self, line: int, cells: list[str]) -> float | None:
        written = _cell(cells, self._at.get("memory_gb"))
        try:
            memory = self._number(line, written) if written else None
        except ValueError:
            self._say("memory is no number: left empty", line)
            return None
        return memory / MB_PER_GB if memory and self._in_mb else memory or None

    def _number(self, line: int, written: str, *, small: bool = False) -> float | None:
        number = ledger_words.number_of(written, small=small)
        if "," in written and number is not None:
            self._say("a comma in a number: read as a decimal comma or between thousands", line)
        return number

    def _status(self, line: int, written: str, *, scored: bool) -> str | None:
        key = (written, scored)
        if key in self._known:
            status = self._known[key]
        else:
            status = self._known[key] = ledger_words.status_of(written, scored=scored)
        if status is None and not self._lenient:
            near = difflib.get_close_matches(written.casefold(), results.STATUSES, n=1)
            hint = f"; did you mean {near[0]}?" if near else " (known: keep, discard, crash and their like)"
            self._notes.faults.append(f"line {line}: unknown status {_short(written)}{hint}")
            return None
        status = status or (DISCARD if scored else CRASH)
        if written != status:
            self._statuses[(written, status)] += 1
        return status

    def _say(self, what: str, line: int) -> None:
        self._said.setdefault(what, []).append(line)

    def say(self) -> None:
        """Put what was supposed into the notes."""
        for (written, status), count in self._statuses.items():
            rows = f"{count} row{'s' if count > 1 else ''}"
            self._notes.assumed.append(f"status {_short(written)} read as {status} ({rows})")
        for what, lines in self._said.items():
            self._notes.assumed.append(f"{ledger_lines.name_lines(lines)}: {what}")


def _plain_name(name: str) -> str:
    return "_".join(name.casefold().replace("-", " ").replace("_", " ").split())


def _short(written: str) -> str:
    return repr(written if len(written) <= 40 else written[:39] + "…")
