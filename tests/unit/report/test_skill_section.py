"""The report's section on the skill loop."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path

import pytest
from PIL import Image
from test_report_page import page_of

import made_result
from made_result import facts_of
from ratchet.core.errors import InputError
from ratchet.report import skill_section
from well_formed import balanced


def section(root: Path) -> str:
    return page_of(root).partition('<section id="skill"')[2].partition("</section>")[0]


def change(path: Path, **keys: object) -> None:
    made_result.write_json(path, json.loads(path.read_text()) | keys)


def test_section_says_both_documents_on_the_test_split_with_intervals_exact_and_contains(result: Path) -> None:
    cells = re.sub(r"<[^>]+>", " ", section(result)).split()
    row = " ".join(cells)
    assert "Seed document 0.031 0.001 to 0.131 0.131 0.031 to 0.231 64" in row
    assert "Best document 0.641 0.611 to 0.741 0.741 0.641 to 0.841 64" in row
    assert "changed by +0.610 on tasks that no step has seen; a gain as large comes by chance with p = 1e-09" in row
    assert "4 of 4 2 accepted by the gate" in row


def test_section_holds_the_dashboard_as_a_picture_of_its_own(result: Path) -> None:
    found = re.search(r'src="data:image/png;base64,([^"]+)" alt="([^"]+)"', section(result))
    assert found
    assert Image.open(io.BytesIO(base64.b64decode(found.group(1)))).size == (1200, 750)
    assert "test exact match 0.031 → 0.641, 64 tasks" in found.group(2)
    assert "img-src data:;" in page_of(result)


def test_section_lists_each_edit_with_its_status_and_escapes_what_it_says(result: Path) -> None:
    text = section(result)
    assert text.count('<td class="text">applied</td>') == text.count('<td class="text">no_match</td>') == 3
    assert "said &#x27;Iron &lt;b&gt;&#x27;" in text
    assert "<strong>Alert: the gate is &lt;b&gt;made up&lt;/b&gt;.</strong> 4 of 4. Laugh." in text
    assert "<ins>+A: Fe</ins>" in text
    assert balanced(page_of(result))


def test_section_of_a_training_that_paused_says_that_nothing_was_tested(result: Path) -> None:
    change(result / "metrics/skill.json", test=None)
    text = section(result)
    assert "The test split was not looked at: training has not reached its horizon (step 4 of 4)." in text
    assert "validation 0.040 → 0.700, not tested" in text


def test_section_of_a_dry_run_says_that_nobody_was_asked(result: Path) -> None:
    told = {"dry_run": True, "steps": 0, "tasks": {"train": 1, "val": 1, "test": 1}}
    made_result.write_json(result / "metrics/skill.json", told)
    made_result.write_json(result / "data/skill/history.json", [])
    assert "nobody was asked" in section(result)
    assert facts_of(result).skill.steps is None


@pytest.mark.parametrize(
    ("name", "keys", "said"),
    [
        ("metrics/skill.json", {"steps": 3}, "holds 4 steps, metrics/skill.json says 3"),
        ("data/skill/summary.json", {"alerts": "look"}, "alerts is 'look', no list of findings"),
        ("data/skill/summary.json", {"cost": None}, "key cost"),
        ("data/skill/edits/step_0002.json", {"edits": 4}, "step_0002.json: is no step's edits"),
        ("data/skill/edits/step_0002.json", {"step": "two"}, "column step, rows 2, 3: 'two'"),
    ],
)
def test_training_that_is_garbled_or_of_another_run_is_refused(
    name: str, keys: dict[str, object], said: str, result: Path
) -> None:
    change(result / name, **keys)
    with pytest.raises(InputError) as error:
        facts_of(result)
    assert said in str(error.value)


def test_training_whose_interval_is_no_pair_is_refused(result: Path) -> None:
    test = facts_of(result).metrics["skill"]["test"]
    change(result / "metrics/skill.json", test=test | {"best": test["best"] | {"hard_interval": [0.1]}})
    with pytest.raises(InputError, match=r"test\.best\.hard_interval is \[0\.1\], no pair of numbers"):
        facts_of(result)


def test_long_text_of_an_edit_is_cut_in_the_table(result: Path) -> None:
    path = result / "data/skill/edits/step_0001.json"
    told = json.loads(path.read_text())
    told["edits"][0]["content"] = "x" * 500
    made_result.write_json(path, told)
    assert "x" * (skill_section.SHOWN_LETTERS - 1) + "…" in section(result)
    assert "x" * skill_section.SHOWN_LETTERS not in section(result)
