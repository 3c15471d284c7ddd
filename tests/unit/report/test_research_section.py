"""The report's section on research, and progress.png."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from matplotlib.figure import Figure

import made_session
from ratchet.core.errors import InputError
from ratchet.report import course_chart, progress_plot, research_section, session
from ratchet.report.session import SessionFacts
from ratchet.tables import improvement, ledgers
from ratchet.tables.improvement import Course
from well_formed import balanced

EVIL = "<script>alert('x')</script> $x_1^{$ & \"q\" **b** `c`"
HEAD = "commit\tval_bpb\tmemory_gb\tstatus\tdescription\n"


def facts(root: Path, made: list[dict] | None = None, *, carries_over: bool = True) -> SessionFacts:
    made_session.make_session(root, made=made, carries_over=carries_over)
    return session.read(root / "data/iterate", json.loads((root / "metrics/iterate.json").read_text()))


def course(root: Path, text: str) -> Course:
    (root / "results.tsv").write_text(HEAD + text, encoding="utf-8")
    return improvement.course(ledgers.read(root / "results.tsv"))


def test_section_tells_best_gain_counts_cost_isolation_and_promote(tmp_path: Path) -> None:
    told = facts(tmp_path)
    page = research_section.research(told)
    assert balanced(page)
    assert f"<dd>{told.metrics['val_bpb']:.4f}<small>bits per byte, from 1.5917</small>" in page
    assert "5 kept, 7 discarded, 2 crashed" in page
    assert "<dd>0.17<small>proposals by search</small>" in page or "<dd>0.18<small>" in page
    assert "<dd>weak<small>" in page
    assert "ratchet promote made" in page
    assert 'id="research-cost"' in page
    assert page.count('<tr><td data-value="') == 15
    assert 'aria-label="Largest improvements"' in page
    assert "Wider helped, deeper did not." in page
    assert "<ins>+DEPTH = 6</ins>" in page


@pytest.mark.parametrize(
    ("carries_over", "said"),
    [
        (True, "The gain carries over to the test split"),
        (False, "<strong>The gain does not carry over to the test split</strong>"),
    ],
)
def test_section_says_whether_the_gain_carries_over(tmp_path: Path, carries_over: bool, said: str) -> None:
    assert said in research_section.research(facts(tmp_path, carries_over=carries_over))


def test_section_of_a_session_that_kept_nothing_offers_no_promotion(tmp_path: Path) -> None:
    page = research_section.research(facts(tmp_path, made_session.rows(2)))
    assert "Nothing was kept, so the test split was not looked at." in page
    assert "ratchet promote" not in page
    assert "Largest improvements" not in page


def test_section_of_a_baseline_alone_is_drawn(tmp_path: Path) -> None:
    page = research_section.research(facts(tmp_path, made_session.rows(0)))
    assert not re.search(r"\bnan\b", page, re.IGNORECASE)
    assert balanced(page)


def test_section_text_of_a_proposer_is_escaped(tmp_path: Path) -> None:
    made = made_session.rows(4)
    made[3]["description"] = made[2]["reason"] = EVIL
    made_session.make_session(tmp_path, made=made)
    folder = tmp_path / "data/iterate"
    (folder / "learned.md").write_text(f"# {EVIL}\n\n- {EVIL}\n\n{EVIL}\n")
    (folder / "patches/0001-x.patch").write_text(f"+{EVIL}\n{EVIL}\n")
    told = session.read(folder, json.loads((tmp_path / "metrics/iterate.json").read_text()))
    page = research_section.research(told)
    assert "<script>alert" not in page
    assert page.count("&lt;script&gt;alert") >= 8
    assert balanced(page)


def test_markdown_of_learned_shows_escaped_signs_as_letters() -> None:
    page = research_section.markdown("# a\n\n- `x` \\*y\\* **z**\n- \\<b\\>\n\nplain\ntext")
    assert page == (
        "<h4>a</h4><ul><li><code>x</code> *y* <strong>z</strong></li><li>&lt;b&gt;</li></ul><p>plain text</p>"
    )


@pytest.mark.parametrize("change", [{"experiments": 13}, {"baseline_val_bpb": 1.6}])
def test_session_of_two_runs_is_refused(tmp_path: Path, change: dict[str, float]) -> None:
    told = facts(tmp_path).metrics
    with pytest.raises(InputError, match=r"metrics/iterate\.json"):
        session.read(tmp_path / "data/iterate", {**told, **change})


def test_session_without_learned_says_what_to_run(tmp_path: Path) -> None:
    told = facts(tmp_path).metrics
    (tmp_path / "data/iterate/learned.md").unlink()
    with pytest.raises(InputError, match="no such file; run `dvc repro --force iterate`"):
        session.read(tmp_path / "data/iterate", told)


def test_png_is_the_same_bytes_twice(tmp_path: Path) -> None:
    told = facts(tmp_path).course
    assert progress_plot.draw(told, dpi=60) == progress_plot.draw(told, dpi=60)


@pytest.mark.parametrize(
    "text",
    [
        "a\t0.0\t0\tcrash\tx\n",
        "a\t0.99\t44\tdiscard\tx\n",
        "a\t0.99\t44\tkeep\tx\n",
        f"a\t0.99\t44\tkeep\t{'long ' * 400}$x_{{1$ \\frac 東京\nb\t9.9\t44\tdiscard\tfar\nc\t0.98\t44\tkeep\ty\n",
        "a\t0.99\t44\tkeep\tx\nb\t1.5\t44\tkeep\tworse\nc\t1.4\t44\tkeep\ty\n",
    ],
    ids=["only a crash", "nothing kept", "a baseline alone", "long labels with signs", "a new baseline"],
)
def test_picture_and_chart_of_odd_sessions_are_drawn(tmp_path: Path, text: str) -> None:
    told = course(tmp_path, text)
    assert progress_plot.draw(told, dpi=50).startswith(b"\x89PNG")
    assert balanced(course_chart.chart(told))
    assert not re.search(r"\bnan\b", course_chart.chart(told), re.IGNORECASE)


def test_chart_marks_each_kind_and_breaks_the_line_at_a_new_baseline(tmp_path: Path) -> None:
    told = course(
        tmp_path,
        "a\t1.0\t44\tkeep\tx\nb\t0.9\t44\tkeep\ty\nc\t0.95\t44\tdiscard\tz\nd\t0\t0\tcrash\toom\ne\t1.2\t44\tkeep\tn\n",
    )
    drawn = course_chart.chart(told).partition("</svg>")[0]
    assert drawn.count('<circle class="dot other"') == 3
    assert drawn.count('<circle class="dot raw"') == 1
    assert drawn.count('class="mark warn"') == 1
    assert drawn.count('class="curve other"') == 2
    assert drawn.count('class="rule base"') == 1


def test_png_draws_a_running_best_of_its_own_for_each_segment(tmp_path: Path) -> None:
    """The line never joins a best to the worse baseline that comes after it."""
    told = course(tmp_path, "a\t1.0\t44\tkeep\tx\nb\t0.9\t44\tkeep\ty\nc\t1.2\t44\tkeep\tn\nd\t1.1\t44\tkeep\tm\n")
    figure = Figure()
    progress_plot._progress(figure, told)
    steps = [line for line in figure.axes[0].lines if line.get_drawstyle() == "steps-post"]
    assert [list(line.get_ydata()) for line in steps] == [[1.0, 0.9, 0.9], [1.2, 1.1, 1.1]]
    assert progress_plot.sentence(told).endswith("1.2000 → 1.1000 bits per byte since a new baseline began at 2")


def test_window_leaves_out_what_went_far_wrong_but_keeps_all_that_was_kept(tmp_path: Path) -> None:
    told = course(tmp_path, "a\t1.0\t44\tkeep\tx\nb\t0.9\t44\tkeep\ty\nc\t1.03\t44\tdiscard\tz\nd\t9\t44\tdiscard\tw\n")
    low, high = progress_plot.window(told)
    assert low < 0.9
    assert 1.03 < high < 1.1


def test_label_is_cut() -> None:
    assert len(progress_plot.label("x" * 2000)) == progress_plot.LETTERS


def test_docs_example_reads_and_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).resolve().parents[3] / "docs/results.md"
    code = page.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    Path("night.tsv").write_text(HEAD + "a\t0.99\t44\tkeep\tx\n")
    exec(compile(code, str(page), "exec"), {})
    assert Path("night.png").read_bytes().startswith(b"\x89PNG")
