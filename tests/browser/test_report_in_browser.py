"""The report in a real browser: it opens without a complaint, draws, sorts, filters, and can be used by keyboard."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from PIL import Image

import made_result
from ratchet.report import palette
from steps import plot

if TYPE_CHECKING:
    from conftest import Page

ROOT = Path(__file__).resolve().parents[2]
SHOTS = ROOT / "results/screenshots"
DESKTOP, PHONE = (1280, 900), (390, 844)
CHARTS = [
    *("research-progress", "research-cost", "team-reward", "team-entropy", "team-completion-length"),
    *("training-curve", "learning-rate", "gradient-norm", "throughput", "memory", "val-bpb"),
]
DOCUMENTS = 80


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of a made-up result, written by the plot stage."""
    root = made_result.make_result(tmp_path_factory.mktemp("a résult"), steps=400, documents=DOCUMENTS)
    (root / "ratchet/report").mkdir(parents=True)
    for name in ("page.css", "page.js"):
        shutil.copy(ROOT / "ratchet/report" / name, root / "ratchet/report" / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        plot.run(plot.PlotParams(smoothing=0.05, dpi=60, documents=0), plot.Inputs(), plot.Outputs())
    return root / "data/plot/report.html"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_report_opens_without_complaint_and_fits_the_window(
    page: Page, report: Path, size: tuple[int, int], dark: bool
) -> None:
    page.open(report, size=size, dark=dark)
    name = f"report-{'phone' if size == PHONE else 'desktop'}-{'dark' if dark else 'light'}.png"
    with Image.open(page.screenshot(SHOTS / name)) as picture:
        colours = palette.DARK if dark else palette.LIGHT
        assert "#{:02x}{:02x}{:02x}".format(*picture.convert("RGB").getpixel((2, 300))) == colours.paper
    assert page.run("document.documentElement.scrollWidth") <= size[0], "the page scrolls sideways"
    assert page.problems == []
    assert page.requested == [report.resolve().as_uri()], "the page asked for something"


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_report_charts_are_drawn_large_enough_to_read(page: Page, report: Path, size: tuple[int, int]) -> None:
    page.open(report, size=size)
    assert page.run("[...document.querySelectorAll('figure.chart')].map(f => f.id)") == CHARTS
    for key in CHARTS:
        shown = page.run(
            f"""(() => {{
              const svg = [...document.querySelectorAll('#{key} svg')].filter(s => s.getBoundingClientRect().width > 0);
              const marks = [...svg[0].querySelectorAll('path.curve, rect.bar')].map(m => m.getBoundingClientRect());
              const area = {{ width: Math.max(...marks.map(m => m.right)) - Math.min(...marks.map(m => m.left)),
                             height: Math.max(...marks.map(m => m.bottom)) - Math.min(...marks.map(m => m.top)) }};
              const text = Math.min(...[...svg[0].querySelectorAll('text')].map(t => t.getBoundingClientRect().height));
              return {{ drawings: svg.length, text, ...area }};
            }})()"""
        )
        assert shown["drawings"] == 1, key
        assert shown["width"] > 180, (key, shown)
        assert shown["height"] > 15, (key, shown)
        assert shown["text"] >= 9, (key, shown)


def listed(page: Page, column: int) -> list[float]:
    return page.run(
        "[...document.querySelectorAll('.documents tbody tr')].filter(r => !r.hidden)"
        f".map(r => Number(r.cells[{column}].dataset.value))"
    )


def test_report_filter_shows_only_documents_with_all_the_words(page: Page, report: Path) -> None:
    page.open(report)
    assert len(listed(page, 0)) == DOCUMENTS
    page.run("document.querySelector('#filter').focus()")
    page.type("GRAMMAR rivers")
    assert sorted(listed(page, 0)) == [n for n in range(DOCUMENTS) if n % 5 == 1]
    assert page.run("document.querySelector('.documents .count').textContent") == f"16 of {DOCUMENTS} documents shown"
    page.type(" nothing-like-this")
    assert listed(page, 0) == []
    page.run("f = document.querySelector('#filter'); f.value = ''; f.dispatchEvent(new Event('input'))")
    assert len(listed(page, 0)) == DOCUMENTS
    assert page.problems == []


def test_report_experiments_filter_and_tell_what_each_tried(page: Page, report: Path) -> None:
    page.open(report)
    page.run("document.querySelector('#filter-experiments').focus()")
    page.type("crash memory")
    assert page.run("document.querySelector('.experiments .count').textContent") == "2 of 15 experiments shown"
    page.run("document.querySelector('#research-progress svg.wide').focus()")
    page.press("Home")
    told = page.run("document.querySelector('#research-progress .readout').textContent")
    assert told.startswith("experiment 0 · bits per byte 1.5917 · ")
    assert told.endswith("baseline: the arena as it stands")
    assert page.problems == []


def test_report_table_sorts_by_keyboard_and_says_so(page: Page, report: Path) -> None:
    page.open(report)
    hardest_first = listed(page, 1)
    assert hardest_first == sorted(hardest_first, reverse=True)
    heads = "[...document.querySelectorAll('.documents th')]"
    page.run(f"{heads}[3].querySelector('button').focus()")
    page.press("Enter")
    assert listed(page, 3) == sorted(listed(page, 3), reverse=True)
    assert page.run(f"{heads}.map(h => h.getAttribute('aria-sort'))") == [None, None, None, "descending", None, None]
    page.press("Space")
    assert listed(page, 3) == sorted(listed(page, 3))
    assert page.run(f"{heads}[3].getAttribute('aria-sort')") == "ascending"
    assert page.problems == []


def test_report_chart_tells_its_numbers_to_pointer_and_keyboard(page: Page, report: Path) -> None:
    page.open(report)
    readout = "document.querySelector('#training-curve .readout').textContent"
    page.run("document.querySelector('#training-curve svg.wide').focus()")
    assert page.run(readout).startswith("optimizer step 400 · each step ")
    page.press("Home")
    assert page.run(readout).startswith("optimizer step 1 · each step ")
    page.press("ArrowRight")
    assert page.run(readout).startswith("optimizer step 2 · ")
    deadline = time.monotonic() + 20
    while not 170 < (step := pointed_at_middle(page, readout)) < 230:
        assert time.monotonic() < deadline, f"the pointer in the middle of 400 steps tells step {step}"
    assert page.problems == []


def pointed_at_middle(page: Page, readout: str) -> int:
    """The step that the training curve tells with the pointer in its middle; a busy browser may still be scrolling."""
    page.run(
        "document.querySelector('#training-curve svg.wide').scrollIntoView({block: 'center', behavior: 'instant'})"
    )
    middle = page.run(
        "(r => [r.left + r.width / 2, r.top + r.height / 2])"
        "(document.querySelector('#training-curve svg.wide').getBoundingClientRect())"
    )
    page.send("Input.dispatchMouseEvent", type="mouseMoved", x=middle[0], y=middle[1])
    return int(page.run(readout).split()[2])


def test_report_everything_that_acts_can_be_reached_and_has_a_name(page: Page, report: Path) -> None:
    page.open(report)
    nameless = page.run(
        """[...document.querySelectorAll('a, button, input, summary, [tabindex], svg')]
           .filter(e => e.getBoundingClientRect().width > 0)
           .filter(e => !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.[0]?.textContent.trim()))
           .map(e => e.outerHTML.slice(0, 80))"""
    )
    assert nameless == []
    scrolling = page.run(
        """[...document.querySelectorAll('div')].filter(e => e.getBoundingClientRect().width > 0)
           .filter(e => ['auto', 'scroll'].includes(getComputedStyle(e).overflowX) && e.tabIndex < 0)
           .map(e => e.outerHTML.slice(0, 80))"""
    )
    assert scrolling == []
    page.press("Tab")
    assert page.run("document.activeElement.textContent") == "Skip to the result"


def test_report_without_scripts_still_shows_everything(page: Page, report: Path) -> None:
    page.send("Emulation.setScriptExecutionDisabled", value=True)
    page.open(report)
    page.send("Emulation.setScriptExecutionDisabled", value=False)
    assert page.run("document.querySelectorAll('figure.chart svg.wide path, figure.chart svg.wide rect').length") > 20
    assert page.run("document.querySelectorAll('.documents tbody tr').length") == DOCUMENTS


def test_report_print_keeps_charts_and_drops_controls(page: Page, report: Path) -> None:
    page.open(report, dark=True)
    page.send("Emulation.setEmulatedMedia", media="print")
    assert page.run("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert page.run("getComputedStyle(document.documentElement).getPropertyValue('--ink').trim()") == palette.LIGHT.ink
    assert len(page.send("Page.printToPDF", printBackground=True)["data"]) > 50_000
