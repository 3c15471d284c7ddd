"""The page of `ratchet compare` in a real browser: it opens without a complaint, draws both, filters, fits a phone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pytest
from PIL import Image

import made_result
from ratchet.commands import compare, differences, versions
from ratchet.report import palette

if TYPE_CHECKING:
    from conftest import Page

SHOTS = Path(__file__).resolve().parents[2] / "results/screenshots"
DESKTOP, PHONE = (1280, 900), (390, 844)
CHARTS = ["compare-training-loss", "compare-best-of-the-session", "compare-best-document", "compare-team-reward"]
ARENA = 'DEPTH = 4  # "quoted" <b>\n' + "".join(f"line_{n} = {n}\n" for n in range(40))
PARAMS = "train: {{seed: {depth}, horizon: {{unit: steps, value: {steps}}}, dtype: auto}}\n"


def made(root: Path, *, steps: int, depth: int) -> Path:
    """A made-up result with its parameters and its arena."""
    made_result.make_result(root, steps=steps, documents=60)
    (root / "params.yaml").write_text(PARAMS.format(depth=depth, steps=steps))
    (root / "arena").mkdir()
    (root / "arena/train.py").write_text(ARENA.replace("DEPTH = 4", f"DEPTH = {depth}").replace("_7 = 7", "_7 = 70"))
    return root


def better(root: Path, by: float, than: Path) -> None:
    """The judgement in `root`, of the documents that `than` was judged on, and the team's reward, better by a share."""
    documents, metrics = Path("data/evaluate/documents.parquet"), Path("metrics/evaluate.json")
    table = pd.read_parquet(than / documents)
    table.assign(nats=table["nats"] * (1 - by)).to_parquet(root / documents)
    told = json.loads((than / metrics).read_text())
    (root / metrics).write_text(json.dumps(told | {"val_bpb": told["val_bpb"] * (1 - by)}))
    history = root / "data/team/history.json"
    rows = [row | {"reward_mean": row["reward_mean"] * (1 + 4 * by)} for row in json.loads(history.read_text())]
    history.write_text(json.dumps(rows))
    team = root / "metrics/team.json"
    told = json.loads(team.read_text())
    told["held_out"]["trained"] = {"mean": 0.6, "low": 0.55, "high": 0.66}
    team.write_text(json.dumps(told))


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of two made-up results, as the command writes it."""
    folder = tmp_path_factory.mktemp("zwei Stände")
    first, second = made(folder / "a", steps=300, depth=4), made(folder / "b", steps=400, depth=6)
    better(second, 0.03, first)
    a = replace(versions.read(".", first), name="v1.0", what="commit 3f2c9a7d01")
    b = replace(versions.read(".", second), name="a branch with <i>letters</i>", what="commit 9b01e2aa44")
    path = folder / "compare.html"
    path.write_text(compare.page(a, b, differences.between(a, b)), encoding="utf-8")
    return path


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_comparison_opens_without_complaint_and_fits_the_window(
    page: Page, compared: Path, size: tuple[int, int], dark: bool
) -> None:
    page.open(compared, size=size, dark=dark)
    name = f"compare-{'phone' if size == PHONE else 'desktop'}-{'dark' if dark else 'light'}.png"
    with Image.open(page.screenshot(SHOTS / name)) as picture:
        colours = palette.DARK if dark else palette.LIGHT
        assert "#{:02x}{:02x}{:02x}".format(*picture.convert("RGB").getpixel((2, 300))) == colours.paper
    assert page.run("document.documentElement.scrollWidth") <= size[0], "the page scrolls sideways"
    assert page.problems == []
    assert page.requested == [compared.resolve().as_uri()], "the page asked for something"


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_comparison_draws_both_curves_of_every_loop(page: Page, compared: Path, size: tuple[int, int]) -> None:
    page.open(compared, size=size)
    assert page.run("[...document.querySelectorAll('figure.chart')].map(f => f.id)") == CHARTS
    for key in CHARTS:
        widths = page.run(
            f"""[...document.querySelectorAll('#{key} svg')].filter(s => s.getBoundingClientRect().width > 0)
                .flatMap(s => ['base', 'main'].map(l => s.querySelector('.curve.' + l)))
                .map(curve => curve.getBoundingClientRect().width)"""
        )
        assert len(widths) == 2, key
        assert min(widths) > 150, (key, widths)


def test_comparison_says_what_differs_with_intervals_and_filters(page: Page, compared: Path) -> None:
    page.open(compared)
    headline = page.run("document.querySelector('.headline').textContent")
    assert headline.startswith("B saves 0.05")
    assert headline.endswith("bits per byte over A on the same documents.")
    rows = "[...document.querySelectorAll('#metrics .experiments tbody tr')].filter(r => !r.hidden)"
    page.run("document.querySelector('#filter-metrics').focus()")
    page.type("evaluate val_bpb")
    (told,) = page.run(f"{rows}.map(r => [...r.cells].map(c => c.textContent))")
    assert told[0] == "evaluate.val_bpb"
    assert " to " in told[1]
    assert " to " in told[2]
    assert told[3].startswith("−0.05")
    assert page.run(f"{rows}[0].querySelectorAll('svg.whisker g').length") == 2
    assert page.run("[...document.querySelectorAll('#parameters tbody th')].map(c => c.textContent)") == [
        "train.seed",
        "train.horizon.value",
    ]
    changed = page.run("[...document.querySelectorAll('#code ins')].map(e => e.textContent)")
    assert '+DEPTH = 6  # "quoted" <b>' in changed
    page.run("document.querySelector('#compare-training-loss svg.wide').focus()")
    page.press("Home")
    readout = page.run("document.querySelector('#compare-training-loss .readout').textContent")
    assert readout.startswith("optimizer step 1 · A ")
    assert " · B " in readout
    assert page.problems == []


def test_comparison_without_scripts_is_whole_and_everything_that_acts_has_a_name(page: Page, compared: Path) -> None:
    page.send("Emulation.setScriptExecutionDisabled", value=True)
    page.open(compared)
    page.send("Emulation.setScriptExecutionDisabled", value=False)
    assert page.run("document.querySelectorAll('figure.chart svg.wide path.curve').length") >= 8
    nameless = page.run(
        """[...document.querySelectorAll('a, button, input, summary, [tabindex], svg')]
           .filter(e => e.getBoundingClientRect().width > 0)
           .filter(e => !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.[0]?.textContent.trim()))
           .map(e => e.outerHTML.slice(0, 80))"""
    )
    assert nameless == []
