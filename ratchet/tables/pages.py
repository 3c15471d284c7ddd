"""docs/tables.md from the schemas: `python -m ratchet.tables.pages` writes its generated part anew.

Knows schemas and one page; refuses to know how tables are checked.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pandera.pandas import Column, DataFrameSchema

from ratchet.core import atomic
from ratchet.core.errors import InputError
from ratchet.stage import guarded
from ratchet.tables import documents, history, metrics, provenance, results, skill_history, team_history, timing

PAGE = Path("docs/tables.md")
BEGIN, END = "<!-- schemas: written by `python -m ratchet.tables.pages` -->", "<!-- schemas: end -->"

SCHEMAS: tuple[DataFrameSchema, ...] = (
    history.SCHEMA,
    timing.STEPS,
    timing.SUMMARY,
    documents.SCHEMA,
    timing.JUDGING,
    results.SCHEMA,
    skill_history.SCHEMA,
    team_history.SCHEMA,
    team_history.TIMING,
    skill_history.SUMMARY,
    skill_history.EDITS,
    *metrics.SCHEMAS.values(),
    provenance.SCHEMA,
)


def described(schemas: tuple[DataFrameSchema, ...] = SCHEMAS) -> str:
    """One section of Markdown for each schema: its columns or keys, their meaning, unit and rule."""
    return "\n".join(_section(schema) for schema in schemas)


def with_schemas(page: str) -> str:
    """`page` with what stands between the marks replaced. Raises InputError when a mark is missing."""
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise InputError(PAGE, "the marks of the generated part are not there once each", f"put in {BEGIN} and {END}")
    head, tail = page.partition(BEGIN)[0], page.partition(END)[2]
    return f"{head}{BEGIN}\n\n{described()}\n{END}{tail}"


def _section(schema: DataFrameSchema) -> str:
    rows = "\n".join(_row(str(name), column) for name, column in schema.columns.items())
    return f"### {schema.name}\n\n{schema.description}\n\n| name | meaning | rule |\n|---|---|---|\n{rows}\n"


def _row(name: str, column: Column) -> str:
    rules = "; ".join(str(check.error) for check in column.checks)
    may = [*(["may be empty"] if column.nullable else []), *([] if column.required else ["may be missing"])]
    return f"| `{name}` | {column.description} | {'; '.join([rules, *may])} |"


def main() -> None:
    """Write the page."""
    atomic.write_text(PAGE, with_schemas(PAGE.read_text(encoding="utf-8")))
    print(f"{PAGE}: {len(SCHEMAS)} schemas")


if __name__ == "__main__":
    sys.exit(guarded("ratchet.tables.pages", main))
