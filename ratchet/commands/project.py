"""The project a command is about: its folder, its copies, and what to type next.

Refuses to know any verb.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table

from ratchet.core.errors import InputError
from ratchet.settings import quiet_this_process

PIPELINE = "dvc.yaml"
REPORT = Path("data/plot/report.html")
METRICS = Path("metrics/evaluate.json")
STAGE_LOGS = Path(".ratchet/logs")
"""One file a stage, of its last run through the flow."""


def enter_project() -> Path:
    """Make the project's folder, this one or the nearest above it, the working directory. Raises InputError."""
    here = Path.cwd()
    for folder in [here, *here.parents]:
        if (folder / PIPELINE).is_file():
            os.chdir(folder)
            quiet_this_process()  # now, so that the project and its copies share one Prefect home
            return folder
    raise InputError(here, f"no {PIPELINE} here or above", "run in the folder of a Ratchet project")


def enter_copy(project: Path, profile: str | None, overrides: Sequence[str]) -> Path:
    """Make the copy for this profile and these overrides the working directory; say so. Raises InputError."""
    from ratchet.copies import PROFILES, prepare_copy

    if profile is not None and (about := _first_comment(project / PROFILES / f"{profile}.yaml")):
        print(f"profile {profile}: {about}")
    copy = prepare_copy(project, profile, overrides)
    os.chdir(copy)
    print(f"in the copy {copy.relative_to(project)}; params.yaml, outputs and dvc.lock here stay as they are")
    return copy


def find_copy(project: Path, profile: str | None, overrides: Sequence[str]) -> Path:
    """The folder where this profile and these overrides run, as it is now; `project` without any. Raises InputError."""
    from ratchet.copies import COPIES, as_options, name_of

    if profile is None and not overrides:
        return project
    copy = project / COPIES / name_of(profile, overrides)
    if not copy.is_dir():
        do = f"type `ratchet run{as_options(profile, overrides)}`"
        raise InputError(copy.relative_to(project), "no such copy yet", do)
    return copy


def _first_comment(path: Path) -> str:
    """The first line of a profile, which says what it is for and how long it takes."""
    if not path.is_file():
        return ""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""


def results(root: Path) -> str:
    """The numbers that count, and where the report is: a line each, as far as they are there."""
    told: list[str] = []
    if (root / METRICS).is_file():
        values = json.loads((root / METRICS).read_text(encoding="utf-8"))
        told += [f"{key}: {values[key]}" for key in ("val_bpb", "ngram_bpb") if key in values]
    if (root / REPORT).is_file():
        told.append(f"report: {REPORT}")
    return "\n".join(told)


def say_next(*commands: str) -> None:
    """Name the command to type next."""
    for command in commands:
        print(f"next: {command}")


def print_json(value: object) -> None:
    """`value` for a program."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table: folded into a terminal's width, and elsewhere one line a row, nothing cut, for grep and awk."""
    console = Console()
    if not console.is_terminal:
        print("\n".join(_lines(columns, rows)))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column != columns[-1])
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    console.print(table, markup=False, highlight=False)


def _lines(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """The head and each row as one line, in columns two spaces apart."""
    table = [[" ".join(str(cell).split()) for cell in row] for row in (columns, *rows)]
    widths = [max(map(cell_len, column)) for column in zip(*table, strict=True)]
    for row in table:
        yield "  ".join(map(set_cell_size, row, widths)).rstrip()


def duration(seconds: float) -> str:
    """`12 s`, `5 min`, `3 h`, `2 d`."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
