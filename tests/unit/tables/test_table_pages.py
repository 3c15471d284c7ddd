"""docs/tables.md says what the schemas say."""

from __future__ import annotations

from pathlib import Path

import pytest

import made_result
from ratchet.core.errors import InputError
from ratchet.tables import history, metrics, pages

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


def block(language: str) -> str:
    """The page's first block of code in `language`."""
    return (ROOT / pages.PAGE).read_text(encoding="utf-8").split(f"```{language}\n", 1)[1].split("```")[0]


def test_page_example_runs_on_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_result.make_result(tmp_path, steps=20, documents=4)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(block("python"), str(pages.PAGE), "exec"), names)
    assert names["loss"] == "loss"


def test_page_example_of_an_error_is_what_a_person_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("data/train/history.tsv")
    path.parent.mkdir(parents=True)
    loss = {7: "inf", 9: "-1.0"}
    lines = ["step\ttokens\tepoch\tloss\tlr_scale\tgrad_norm"]
    for line in range(2, 120):
        lines.append(f"{line}\t{line}\t0.1\t{loss.get(line, '3.0')}\t{1.3 + line / 10:.1f}\t")
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError) as caught:
        history.read(path)
    assert str(caught.value) == block("text").strip()


def test_page_without_marks_is_refused() -> None:
    with pytest.raises(InputError, match="the marks of the generated part"):
        pages.with_schemas("# Tables\n")
