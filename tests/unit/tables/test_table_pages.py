"""docs/tables.md says what the schemas say."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.core.errors import InputError
from ratchet.tables import metrics, pages

ROOT = Path(__file__).resolve().parents[3]


def test_page_generated_part_agrees_with_the_schemas() -> None:
    page = (ROOT / pages.PAGE).read_text(encoding="utf-8")
    assert pages.with_schemas(page) == page, "run `python -m ratchet.tables.pages`"


def test_described_every_schema_and_column_has_a_meaning_and_a_rule() -> None:
    text = pages.described()
    assert {str(schema.name) for schema in pages.SCHEMAS} >= {str(s.name) for s in metrics.SCHEMAS.values()}
    for schema in pages.SCHEMAS:
        assert f"### {schema.name}\n" in text
        for name, column in schema.columns.items():
            assert column.description, f"{schema.name}: {name}"
            assert f"| `{name}` | {column.description} | " in text
            assert all(check.error for check in column.checks)


def test_page_without_marks_is_refused() -> None:
    with pytest.raises(InputError, match="the marks of the generated part"):
        pages.with_schemas("# Tables\n")
