"""history.json, what is published beside it, and the dashboard."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import toy_skill
from ratchet.core.errors import InputError
from ratchet.loops.skill import publish
from ratchet.loops.skill.publish import Published
from ratchet.loops.skill.session import code
from ratchet.report import training_dashboard
from ratchet.tables import skill_history
from ratchet.tables.conform import TableError

PUBLISHED = [
    "step", "epoch", "step_in_epoch", "timing", "tokens", "rollout_hard", "rollout_soft", "rollout_n", "n_patches",
    "n_failure_patches", "n_success_patches", "n_edits_merged", "n_edits_ranked", "edit_budget", "lr_control_mode",
    "support_counts", "candidate_hash", "candidate_skill_len", "edit_apply_summary", "selection_hard",
    "selection_soft", "gate_metric", "candidate_gate_score", "action", "current_score", "best_score", "best_step",
    "current_origin", "best_origin", "skill_len", "wall_time_s",
]  # fmt: skip


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    """A toy run whose last steps have nothing to propose."""
    patch = pytest.MonkeyPatch()
    patch.setattr(os, "fsync", lambda descriptor: None)
    folder = tmp_path_factory.mktemp("toy")
    code()
    made = toy_skill.request(toy_skill.make_project(folder), learning_rate=8, min_learning_rate=2)
    result = toy_skill.run(made, folder)[1]
    patch.undo()
    return result


def test_history_has_every_published_field_in_every_step_the_skipped_ones_too(published: Published) -> None:
    actions = [row["action"] for row in published.history]
    assert {"accept_new_best", "skip_no_patches"} <= set(actions)
    for row in published.history:
        assert [name for name in row if name in PUBLISHED] == PUBLISHED
        assert set(row["timing"]) == {
            f"{name}_s" for name in ("rollout", "reflect", "aggregate", "select", "update", "evaluate")
        }
        assert set(row["tokens"]["analyst"]) == {"calls", "prompt_tokens", "completion_tokens"}
        assert set(row["edit_apply_summary"]) == {"total", "applied", "skipped", "errors"}
    skipped = published.history[actions.index("skip_no_patches")]
    assert skipped["selection_hard"] == skipped["current_score"]
    assert skipped["n_patches"] == 0


def test_results_are_published_whole_and_readable(published: Published, tmp_path: Path) -> None:
    publish.write(published, tmp_path / "skill", {"training_dashboard.png": b"png"})
    folder = tmp_path / "skill"
    assert {path.name for path in folder.iterdir()} == {
        "best_skill.md", "seed_skill.md", "history.json", "summary.json", "skill.diff", "edits", "test.jsonl",
        "training_dashboard.png",
    }  # fmt: skip
    assert (folder / "best_skill.md").read_text() == published.state.best.text
    frame = skill_history.read(folder / "history.json")
    assert list(frame["step"]) == [row["step"] for row in published.history]
    first = json.loads((folder / "edits/step_0001.json").read_text())
    assert {edit["status"] for edit in first["edits"]} == {"applied"}
    assert "+" + published.state.best.text.splitlines()[0] in (folder / "edits/step_0001.diff").read_text()
    answers = [json.loads(line) for line in (folder / "test.jsonl").read_text().splitlines()]
    assert sum(each["best"]["hard"] for each in answers) / len(answers) == published.metrics["test"]["best"]["hard"]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["test"]["seed"]["hard"] == 0.0
    assert summary["tokens"]["rollout"]["calls"] > 100


def test_metrics_count_the_tasks_that_are_used(published: Published, tmp_path: Path) -> None:
    assert published.metrics["tasks"] == {"train": 30, "val": 20, "test": 20}
    limited = toy_skill.request(toy_skill.make_project(tmp_path), limit=7, train_size=5)
    assert publish.dry(limited, tmp_path / "dry", [])["tasks"] == {"train": 5, "val": 7, "test": 7}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "died before its first one"),
        ('[{"step": 1, "epo', "may be cut off"),
        ("{}", "not a list"),
        (None, "no such"),
    ],
)
def test_history_that_is_empty_torn_or_missing_is_an_error_naming_the_log(
    text: str | None, said: str, tmp_path: Path
) -> None:
    log = tmp_path / "runs/skill/abc/skill.log"
    log.parent.mkdir(parents=True)
    log.touch()
    path = tmp_path / "history.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=said) as error:
        skill_history.read(path, runs=tmp_path / "runs")
    assert text == "{}" or str(log) in str(error.value)


def test_history_with_a_wrong_field_names_record_field_and_value(published: Published) -> None:
    rows: list[dict[str, Any]] = json.loads(json.dumps(published.history))
    rows[1]["selection_hard"] = 1.5
    rows[2]["action"] = "accepted"
    del rows[0]["edit_budget"]
    with pytest.raises(TableError) as error:
        skill_history.check(rows, "history.json")
    assert "selection_hard, record 2: 1.5" in str(error.value)
    assert "action, record 3: 'accepted'" in str(error.value)


def test_dashboard_is_a_picture_and_the_same_history_gives_the_same_bytes(published: Published) -> None:
    frame = skill_history.check(published.history, "x")
    first, second = (training_dashboard.draw(frame, baseline=0.1, alerts=["look"], title="t") for _ in range(2))
    assert first == second
    assert first != training_dashboard.draw(frame, baseline=0.5)
    picture = Image.open(io.BytesIO(first))
    assert picture.size == (1200, 750)
    assert len(picture.convert("RGB").getcolors(10**6) or []) > 50
    tokens = training_dashboard.cumulative_tokens(frame)
    assert float(tokens["analyst"].iloc[-1]) == sum(
        row["tokens"]["analyst"]["prompt_tokens"] + row["tokens"]["analyst"]["completion_tokens"]
        for row in published.history
    )


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"), [(0, 20, 0.0, 0.161), (27, 32, 0.682, 0.931), (20, 20, 0.839, 1)]
)
def test_interval_of_a_share(hits: int, n: int, low: float, high: float) -> None:
    assert publish.wilson(hits, n) == [pytest.approx(low, abs=1e-3), pytest.approx(high, abs=1e-3)]
