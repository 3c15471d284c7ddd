"""The report's section on a team training, and team_curves.png."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from made_team import held_out, make_team, metrics, rows, sample
from ratchet.core.errors import InputError
from ratchet.report import team, team_curves, team_section
from ratchet.report.team import TeamFacts
from ratchet.tables import team_history
from ratchet.tables.findings import Found, Severity
from well_formed import balanced

EVIL = "<script>alert('x')</script> \x1b[31m\u202e & \"q\" $x_1^{$"


def facts(count: int = 40, agents: int = 2, *, kl: bool = False, **more: Any) -> TeamFacts:
    table = team_history.check(rows(count, agents, kl=kl), "history.json")
    return TeamFacts(table, "helper", 2, 8, **more)


SILENT = Found(Severity.WARNING, "agent 1 is silent", "in 5 of 9 rows", "read the samples")


def test_section_tells_rise_steps_resumes_samples_and_alerts() -> None:
    told = facts(resumes=[160], held_out=held_out(0.3), samples=[sample(1), sample(2)], alerts=[SILENT])
    page = team_section.team(told)
    assert balanced(page)
    assert not re.search(r"\bnan\b", page, re.IGNORECASE)
    assert "<dd>0.500<small>from 0.200, 64 items × 4 samples</small>" in page
    assert "<dd>+0.300<small>95 %, paired over items: 0.250 to 0.350</small>" in page
    assert "<dd>320<small>4,000 tokens generated</small>" in page
    assert "<dd>40<small>20 optimizer steps left out</small>" in page
    assert "The reward rose on items that were not trained on" in page
    assert "<strong>Alert: agent 1 is silent.</strong> In 5 of 9 rows. Read the samples." in page
    assert "<summary>Epoch 2: 1 sample</summary>" in page
    assert "<strong>Paris</strong>" in page
    assert "<strong>(nothing)</strong>" in page
    assert team_section.headline(told) == "Team training, task helper, 320 env steps: held-out reward 0.200 → 0.500"


def test_section_rise_whose_interval_reaches_zero_is_a_warning() -> None:
    page = team_section.team(facts(held_out=held_out(0.04)))
    assert "<strong>No rise is shown on items that were not trained on</strong>" in page
    assert "The reward rose" not in page


def test_section_before_the_end_says_that_held_out_items_come_last() -> None:
    told = facts()
    assert "looked at when training has come to its end" in team_section.team(told)
    assert team_section.headline(told).endswith("training reward 0.200 → 0.700")


def test_section_text_of_agents_is_stripped_cut_and_escaped() -> None:
    samples = [sample(1, EVIL), sample(1, "long " * 400)]
    page = team_section.team(facts(samples=samples, alerts=[Found(Severity.NOTE, EVIL, "x", "y")]))
    assert "<script>alert" not in page
    assert page.count("&lt;script&gt;alert") == 2
    said = page.partition("What the agents said")[2]
    assert "\x1b" not in said
    assert "\u202e" not in said
    assert "long long" in said
    assert "…</strong>" in said
    assert len(said) < 4000
    assert balanced(page)


def test_section_shows_few_samples_of_an_epoch_and_counts_all() -> None:
    page = team_section.team(facts(samples=[sample(1) for _ in range(50)]))
    assert "Epoch 1: 50 samples" in page
    assert page.count("<strong>Paris</strong>") == team_section.SAMPLES


def test_section_samples_of_fewer_agents_in_a_turn_keep_the_table_whole() -> None:
    three = {**sample(1), "prompts": ["a", "b", "c"], "completions": ["x", "y", "z"]}
    assert balanced(team_section.team(facts(agents=3, samples=[three, sample(1)])))


def test_charts_mark_resumes_inside_the_curve_only_and_looks_with_their_interval() -> None:
    table = facts().history
    page = team_curves.charts(table, [160, 10_000], 8)
    reward = page.partition('id="team-reward"')[2].partition("</svg>")[0]
    assert reward.count('class="rule base"') == 1
    assert reward.count('<circle class="dot other"') == 4
    at = float(re.findall(r'class="rule base" x1="([\d.]+)"', reward)[0])
    left, right = (float(each) for each in re.findall(r'data-box="(\d+) (\d+)"', reward)[0])
    assert at == pytest.approx(left + (160 - 8) / (320 - 8) * (right - left), abs=0.1)
    assert "rule base" not in team_curves.charts(table, [], 8)


def test_charts_have_divergences_only_where_they_were_measured() -> None:
    assert 'id="team-kl"' not in team_curves.charts(facts().history, [], 8)
    assert 'id="team-kl"' in team_curves.charts(facts(kl=True).history, [], 8)


def test_charts_of_one_row_and_of_empty_entropies_are_drawn() -> None:
    table = facts(1).history
    assert balanced(team_curves.charts(table, [8], 8))
    empty = table.assign(agent0_entropy=np.nan, agent1_entropy=np.nan)
    assert 'id="team-entropy"' not in team_curves.charts(empty, [], 8)
    assert team_curves.draw(empty, [], 8, title="t", dpi=50).startswith(b"\x89PNG")


@pytest.mark.parametrize("agents", [1, 2, 4])
def test_png_is_a_picture_and_the_same_table_gives_the_same_bytes(agents: int) -> None:
    table = facts(agents=agents, kl=True).history
    first, second = (team_curves.draw(table, [160], 8, title="A title", dpi=60) for _ in range(2))
    assert first == second
    assert first != team_curves.draw(table, [], 8, title="A title", dpi=60)
    picture = Image.open(io.BytesIO(first))
    assert picture.size == (600, 420)
    assert len(picture.convert("RGB").getcolors(10**6) or []) > 50


def read(root: Path, **over: Any) -> TeamFacts:
    return team.read(root / "data/team", root / "data/team-timing.json", metrics(3) | over)


def test_facts_are_read_from_the_published_files(tmp_path: Path) -> None:
    make_team(tmp_path, 3, "a\u2028b")
    told = read(tmp_path)
    assert (told.task, told.epochs, told.max_new_tokens, told.resumes) == ("helper", 2, 8, [16])
    assert [each["completions"][0] for each in told.samples] == ["a\u2028b"] * 2
    assert balanced(team_section.team(told))


def test_facts_of_two_trainings_or_without_a_file_are_refused(tmp_path: Path) -> None:
    make_team(tmp_path, 3)
    with pytest.raises(InputError, match=r"history\.json: holds 3 rows, metrics/team\.json says 4 updates"):
        read(tmp_path, updates=4)
    (tmp_path / "data/team-timing.json").write_text("[")
    with pytest.raises(InputError, match=r"timing\.json: not JSON"):
        read(tmp_path)
    (tmp_path / "data/team/summary.json").unlink()
    with pytest.raises(InputError, match=r"summary\.json: no such file"):
        read(tmp_path)
