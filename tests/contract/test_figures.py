"""Every figure of a page that names a benchmark's result agrees with that result.

A figure is a row of a Markdown table whose head has a cell `measured`. Its last cell names where the number comes from:

    | what                 | asked | measured | from                                                   |
    |----------------------|-------|----------|--------------------------------------------------------|
    | loader, 256 per row  | ≥ 15  | 53.6 ×   | `bench/results/loader.json` `figures.runs.0.ratio`     |

The first number of the cell `measured` is compared, at the precision it is printed with. A `%` after it means a share
times 100, unless the key's name says percent; `k`, `M`: thousands, millions. A number of a path is a place in a list.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
SOURCE = re.compile(r"`(bench/results/[\w.-]+\.json)` `([^`]+)`")
NUMBER = re.compile(r"([-−+]?\d[\d,]*(?:\.\d+)?(?:e[-−]?\d+)?)\s?(%|k\b|M\b)?")
UNITS = {"": Decimal(1), "%": Decimal("0.01"), "k": Decimal(1000), "M": Decimal(1_000_000)}


class Figure(NamedTuple):
    """One row: the page, the cell `measured`, the file and the dotted key it comes from."""

    page: str
    measured: str
    file: str
    key: str


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def figures(text: str, page: str) -> Iterator[Figure]:
    """The figures of a page. Raises AssertionError for a source outside a row that says what was measured."""
    head: list[str] = []
    for line in text.splitlines():
        if not line.lstrip().startswith("|"):
            head = []
        elif not head:
            head = cells(line)
        sources = SOURCE.findall(line)
        if sources:
            assert len(sources) == 1, f"{page}: {line}: one source a row"
            assert "measured" in head, f"{page}: {line}: stands in no table with a column `measured`"
            yield Figure(page, cells(line)[head.index("measured")], *sources[0])


def value_at(key: str, result: Any) -> Any:
    for part in key.split("."):
        result = result[int(part)] if isinstance(result, list) else result[part]
    return result


def agrees(measured: str, key: str, value: float) -> bool:
    """Whether the first number of `measured` is `value`, rounded as printed."""
    match = NUMBER.search(measured)
    assert match, f"{measured!r} holds no number"
    unit = match.group(2) or ""
    if unit == "%" and "percent" in key.rpartition(".")[2]:
        unit = ""
    printed = Decimal(match.group(1).replace(",", "").replace("−", "-"))
    exponent = printed.as_tuple().exponent
    assert isinstance(exponent, int)
    last_place = Decimal(1).scaleb(exponent) * UNITS[unit]
    return abs(printed * UNITS[unit] - Decimal(repr(value))) <= last_place * Decimal("0.501")


FIGURES = [figure for page in PAGES for figure in figures(page.read_text("utf-8"), page.relative_to(ROOT).as_posix())]


def test_pages_figures_agree_with_the_results() -> None:
    for figure in FIGURES:
        path = ROOT / figure.file
        assert path.is_file(), f"{figure.page}: {figure.file} is not there"
        value = value_at(figure.key, json.loads(path.read_text(encoding="utf-8")))
        assert agrees(figure.measured, figure.key, value), (
            f"{figure.page} says {figure.measured!r}, {figure.file} has {figure.key} = {value}"
        )


def test_readme_tells_the_default_run_whose_metrics_are_committed() -> None:
    text = " ".join((ROOT / "README.md").read_text("utf-8").split())
    trained, judged = (
        json.loads((ROOT / f"metrics/{stage}.json").read_text("utf-8")) for stage in ("train", "evaluate")
    )
    figures_of_the_run = {
        r"\*\*([\d.]+) bits per byte": ("val_bpb", judged["val_bpb"]),
        r"([\d.]+) below a byte n-gram model\*\*": ("gain_over_ngram", judged["gain_over_ngram"]),
        r"judged on ([\d,]+) documents": ("documents", judged["documents"]),
        r"([\d.]+) M parameters": ("params_m", trained["params_m"]),
        r"([\d,]+) steps of": ("steps", trained["steps"]),
        r"steps of ([\d,]+) tokens": ("tokens_per_step", trained["tokens"] / trained["steps"]),
    }
    for pattern, (key, value) in figures_of_the_run.items():
        said = re.findall(pattern, text)
        assert said, f"README.md says nothing like {pattern!r}"
        assert all(agrees(figure, key, value) for figure in said), f"README.md says {said}, the metrics {key} = {value}"


def test_results_are_where_their_figures_and_their_commit_say() -> None:
    for path in (ROOT / "bench/results").glob("*.json"):
        result = json.loads(path.read_text(encoding="utf-8"))
        assert result["figures"], path
        assert re.fullmatch(r"[0-9a-f]{40}", result["provenance"]["commit"]), path


@pytest.mark.parametrize(
    ("measured", "key", "value", "same"),
    [
        ("53.6 ×", "ratio", 53.6, True),
        ("53.6 ×", "ratio", 53.64, True),
        ("53.6 ×", "ratio", 53.66, False),
        ("1.9x (1.5 asked)", "ratio", 1.921, True),
        ("15,143,797 tokens/s", "speed", 15143797, True),
        ("15.1 M tokens", "speed", 15143797, True),
        ("14 k", "speed", 14600, False),
        ("0.034 %", "a.ours_share_of_a_step_percent", 0.0338, True),
        ("0.09 %", "ours_lost_share", 0.0008965, True),
        ("0.10 %", "ours_lost_share", 0.0008965, False),
        ("−1.2", "gain", -1.2, True),
        ("2e-7", "shift", 1.6e-7, True),
    ],
)
def test_agrees_rounds_as_printed(measured: str, key: str, value: float, same: bool) -> None:
    assert agrees(measured, key, value) == same


def test_figures_reads_the_row_of_its_own_docstring() -> None:
    assert __doc__
    found = list(figures(__doc__, "here"))
    assert found == [Figure("here", "53.6 ×", "bench/results/loader.json", "figures.runs.0.ratio")]
    with pytest.raises(AssertionError, match="no table with a column"):
        list(figures("see `bench/results/x.json` `figures.a`", "here"))
