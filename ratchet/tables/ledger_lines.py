"""Cut the text of a ledger into rows of as many cells as its header has, whatever stands between them.

Knows delimiters, quotes and what is no row; refuses to know what a cell means beyond telling a row from prose.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from ratchet.tables import ledger_words

PUBLISHED = ["commit", "val_bpb", "memory_gb", "status", "description"]
DELIMITERS = ("\t", "|", ";", ",")
LONGEST_CELL = 20
"""Lines that one quoted cell may run over."""
MAX_NAMED = 5

_RULE = re.compile(r"[\s|+:=*_~─━—–.#-]*")
_NAMES = {
    "".join(letter for letter in name.casefold() if letter.isalnum()): column
    for column, names in {
        **ledger_words.NAMES,
        "memory_gb": (*ledger_words.NAMES["memory_gb"], *ledger_words.MEGABYTES),
    }.items()
    for name in names
}


@dataclass(frozen=True)
class Layout:
    """How a ledger is written: its columns in order, what stands between cells, and which column is which.

    `places`: published name → position, for those that are there. `first`: index of the first line below the header.
    """

    names: list[str]
    delimiter: str
    places: dict[str, int]
    first: int
    has_header: bool = True


def find_header(text: Sequence[str]) -> Layout | None:
    """The layout that the first line with a column for the score and one for the status gives; for a file that begins
    with a row of the published five, their order. None when there is neither."""
    for index, line in enumerate(text):
        delimiter = delimiter_of(line)
        names = [cell.strip().lstrip("#").strip() for cell in split(line, delimiter)]
        places = _places(names)
        if len(names) > 1 and {"val_bpb", "status"} <= places.keys():
            return Layout(_unlike(names), delimiter, places, index + 1)
    first = next(index for index, line in enumerate(text) if line.strip())
    published = Layout(PUBLISHED, "\t", {name: place for place, name in enumerate(PUBLISHED)}, first, has_header=False)
    cells = split(text[first], "\t")
    return published if len(cells) == len(PUBLISHED) and is_row(cells, published) else None


def _places(names: Sequence[str]) -> dict[str, int]:
    """Published name → position; of several columns that could be it, the one with the best name."""
    plain = ["".join(letter for letter in name.casefold() if letter.isalnum()) for name in names]
    order = list(_NAMES)
    found: dict[str, int] = {}
    for place in sorted(range(len(plain)), key=lambda at: order.index(plain[at]) if plain[at] in _NAMES else -1):
        if plain[place] in _NAMES:
            found.setdefault(_NAMES[plain[place]], place)
    return found


def _unlike(names: Sequence[str]) -> list[str]:
    """`names` without empty ones and repetitions."""
    unlike: list[str] = []
    for place, name in enumerate(names):
        unlike.append(name if name and name not in unlike else f"{name or 'column'} {place + 1}")
    return unlike


def delimiter_of(line: str) -> str:
    """What stands between the cells of a header."""
    return next((mark for mark in DELIMITERS if mark in line), "\t")


def split(line: str, delimiter: str) -> list[str]:
    """The cells of a line. A cell that is quoted as a whole loses its quotes; a bar table its outer bars."""
    if delimiter == "|":
        line = line.strip().removeprefix("|").removesuffix("|")
        return [cell.replace("\\|", "|").strip() for cell in re.split(r"(?<!\\)\|", line)]
    if delimiter != "\t" and '"' in line:
        return next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])
    cells = line.split(delimiter)
    return [_unquoted(cell) for cell in cells] if '"' in line else cells


def _unquoted(cell: str) -> str:
    inner = cell.strip()[1:-1]
    whole = len(cell.strip()) >= 2 and cell.strip()[0] == cell.strip()[-1] == '"'
    return inner.replace('""', '"') if whole and '"' not in inner.replace('""', "") else cell


def is_row(cells: Sequence[str], layout: Layout) -> bool:
    """Whether score and status are where the header says."""
    if len(cells) <= max(layout.places["val_bpb"], layout.places["status"]):
        return False
    try:
        score = ledger_words.number_of(cells[layout.places["val_bpb"]].strip(), small=True)
    except ValueError:
        return False
    return ledger_words.status_of(cells[layout.places["status"]], scored=bool(score)) is not None


def name_lines(lines: Sequence[int]) -> str:
    """`line 7`, `lines 7, 9`, `lines 1, 2, 3, 4, 5 and 8 more`."""
    more = f" and {len(lines) - MAX_NAMED} more" if len(lines) > MAX_NAMED else ""
    return ("line " if len(lines) == 1 else "lines ") + ", ".join(map(str, lines[:MAX_NAMED])) + more


def line_of(fault: str) -> int:
    """The line that a fault begins with."""
    return int(re.findall(r"\d+", fault)[0])


@dataclass
class Lines:
    """Reads the lines below a header. `faults`: lines that are no row. `assumed`: rows that had to be mended."""

    layout: Layout
    lenient: bool
    faults: list[str] = field(default_factory=list[str])
    assumed: list[str] = field(default_factory=list[str])
    _other: int | None = None
    """The line at which another table began."""
    _mended: dict[str, list[int]] = field(default_factory=dict[str, list[int]])

    def rows(self, text: Sequence[str]) -> list[tuple[int, list[str]]]:
        """Line number and cells of every row, in order."""
        found: list[tuple[int, list[str]]] = []
        width, delimiter, score = len(self.layout.names), self.layout.delimiter, self.layout.places["val_bpb"]
        index = self.layout.first
        above = enumerate(text[: index - self.layout.has_header], 1)
        self.faults += [f"line {at}: above the header: {line.strip()[:40]!r}" for at, line in above if line.strip()]
        while index < len(text):
            line, number, index = text[index], index + 1, index + 1
            if '"' in line and (more := self._quoted(text, index - 1)):
                cells, index = more
            else:
                cells = split(line, delimiter)
            plain = len(cells) == width and cells[score].lstrip()[:1].isdigit() and self._other is None
            row = cells if plain else self._odd(number, line, cells)
            if row is not None:
                found.append((number, row))
        self.assumed += [f"{name_lines(lines)}: {what}" for what, lines in self._mended.items()]
        return found

    def _quoted(self, text: Sequence[str], index: int) -> tuple[list[str], int] | None:
        """The cells of the row that begins at `index` and the index after it, when quotes hold delimiters or line
        ends; None when the line is a row as it stands."""
        width, delimiter = len(self.layout.names), self.layout.delimiter
        joined, after = text[index], index + 1
        if joined.count('"') % 2 == 0 and len(split(joined, delimiter)) == width:
            return None
        while joined.count('"') % 2 == 1:
            over = after == len(text) or after - index > LONGEST_CELL
            if over or len(split(text[after], delimiter)) == width:
                return None  # the next line is a row of its own: the quote is a mere inch mark
            joined, after = f"{joined}\n{text[after]}", after + 1
        cells = next(csv.reader(joined.splitlines(keepends=True), delimiter=delimiter), [])
        return (cells, after) if len(cells) == width else None

    def _odd(self, number: int, line: str, cells: list[str]) -> list[str] | None:
        """What a line that does not look like a row is; its cells when it is one after all."""
        width = len(self.layout.names)
        if not line.strip():
            return None
        if _RULE.fullmatch(line):
            if not (self.layout.delimiter == "|" and number == self.layout.first + 1):
                self.faults.append(f"line {number}: a separator line")
            return None
        if len(_places(cells)) >= 2 and not is_row(cells, self.layout):
            return self._header(number, cells)
        if self._other is not None:
            self.faults.append(f"line {number}: belongs to the table that begins in line {self._other}")
            return None
        if len(cells) == width:
            return cells  # its values decide
        return self._mend(number, line, cells)

    def _header(self, number: int, cells: list[str]) -> None:
        if [cell.strip().lstrip("#").strip() for cell in cells] == self.layout.names:
            self._other = None
            self.faults.append(f"line {number}: the header once more")
        else:
            self._other = number
            self.faults.append(f"line {number}: the header of another table: {' '.join(cells)[:60]!r}")

    def _mend(self, number: int, line: str, cells: list[str]) -> list[str] | None:
        """The cells of a ragged row that is readable, when that is wanted."""
        width, shown = len(self.layout.names), f"{line.strip()[:40]!r}"
        if line.lstrip().startswith(("#", "//")):
            self.faults.append(f"line {number}: a comment: {shown}")
            return None
        if len(cells) == 1 and self.layout.delimiter == "\t" and line.count(",") >= 3:
            what, cells = "separated by commas", split(line, ",")
        elif len(cells) == 1:
            self.faults.append(f"line {number}: prose: {shown}")
            return None
        else:
            what = f"{len(cells)} cells where the header has {width}"
        mended = self._fitted(cells, ", " if "commas" in what else " ") if self.lenient else None
        if mended is None:
            self.faults.append(f"line {number}: {what}: {shown}")
        else:
            self._mended.setdefault(f"{what}: read nevertheless", []).append(number)
        return mended

    def _fitted(self, cells: list[str], between: str) -> list[str] | None:
        """`cells` as many as the header has: surplus ones are of a description at the end, missing ones are empty."""
        width = len(self.layout.names)
        if len(cells) > width and self.layout.places.get("description") == width - 1:
            cells = [*cells[: width - 1], between.join(cell.strip() for cell in cells[width - 1 :])]
        needed = max(self.layout.places["val_bpb"], self.layout.places["status"])
        if needed < len(cells) < width:
            cells = [*cells, *[""] * (width - len(cells))]
        return cells if len(cells) == width and is_row(cells, self.layout) else None
