"""metrics/*.json, timing summaries and provenance: JSON objects held against their schemas."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import made_result
from ratchet.core.errors import InputError
from ratchet.core.fingerprint import flatten
from ratchet.tables import metrics, provenance, skill_history, team_history, timing


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = made_result.make_result(tmp_path_factory.mktemp("result"), steps=30, documents=8)
    skill = {"steps": 4, "horizon_steps": 4, "tasks": {"train": 28, "val": 26, "test": 64}, "best_step": 1}
    accuracy = {"val": {"seed": {"hard": 0.0}, "best": {"hard": 0.7}}}
    made_result.write_json(root / "metrics/skill.json", skill | accuracy)
    return root


@pytest.fixture
def judged(result: Path) -> dict[str, Any]:
    return json.loads((result / "metrics/evaluate.json").read_text())


def refusal(stage: str, value: object) -> str:
    with pytest.raises(InputError) as caught:
        metrics.validate(stage, value)
    return str(caught.value)


@pytest.mark.parametrize("stage", list(metrics.SCHEMAS))
def test_metrics_of_every_stage_valid_comes_back_unchanged(result: Path, stage: str) -> None:
    path = result / f"metrics/{stage}.json"
    assert metrics.read(path) == json.loads(path.read_text())


def test_metrics_whole_number_in_a_float_key_is_accepted(judged: dict[str, Any]) -> None:
    assert metrics.validate("evaluate", judged | {"val_bpb": 2})["val_bpb"] == 2


def test_metrics_more_keys_than_the_schema_are_kept(judged: dict[str, Any]) -> None:
    assert metrics.validate("evaluate", judged | {"extra": [1, 2]})["extra"] == [1, 2]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"val_bpb": float("inf")}, "key val_bpb: inf (must be a finite number, at least 0)"),
        ({"val_bpb": float("nan")}, "key val_bpb: empty (must hold a value)"),
        ({"val_bpb": None}, "key val_bpb: empty (must hold a value)"),
        ({"val_bpb": "good"}, "key val_bpb: 'good' (must be a number)"),
        ({"documents": 2.5}, "key documents: 2.5 (must be a whole number, at least 1)"),
        ({"isolation": "strong"}, "key isolation: 'strong' (must be one of weak, container)"),
        ({"probe": {}}, "key probe.rows, probe.repeated_rows, probe.tolerance_nats, probe.verdict is missing"),
    ],
)
def test_metrics_bad_value_names_key_value_rule(judged: dict[str, Any], change: dict[str, Any], said: str) -> None:
    message = refusal("evaluate", judged | change)
    assert message.startswith(f"metrics/evaluate.json: {said}")
    assert message.endswith("run `dvc repro --force evaluate` to write it anew")


def test_metrics_zero_is_a_score_not_a_missing_value(judged: dict[str, Any]) -> None:
    assert metrics.validate("evaluate", judged | {"val_bpb": 0.0})["val_bpb"] == 0.0


def test_metrics_unknown_stage_names_the_nearest() -> None:
    assert "did you mean 'evaluate'?" in refusal("evalute", {})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON at line 1"),
        ("[1]", "holds a list, not an object"),
        ('{"steps": NaN}', "holds NaN, which is no JSON"),
        ('{"steps": 1,', "not JSON at line 1"),
        ('{"a": 1, "a": 2}', "key a stands twice"),
    ],
)
def test_record_garbled_file_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "train.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        metrics.read(path)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_timing_and_provenance_of_a_result_are_read(result: Path) -> None:
    assert timing.read_summary(result / "data/train/timing/summary.json")["peak_vram_mb"] == 1423.0
    assert timing.read_judging(result / "data/evaluate/timing.json")["seconds"] == 21.0
    assert provenance.read(result / "data/train/provenance.json")["dirty"] is True


def test_provenance_outside_git_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "prepare/provenance.json"
    made_result.write_json(path, made_result.provenance_of("prepare") | {"commit": None, "dirty": None})
    assert provenance.read(path)["commit"] is None


def test_provenance_dirty_as_a_number_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "prepare/provenance.json"
    made_result.write_json(path, made_result.provenance_of("prepare") | {"dirty": 1})
    with pytest.raises(InputError, match=r"key dirty: 1 .must be true or false"):
        provenance.read(path)


def test_flatten_nested_keys_are_dotted_and_lists_stay() -> None:
    flat = flatten({"a": {"b": 1, "c": {"d": []}}, "e": {}})
    assert flat == {"a.b": 1, "a.c.d": [], "e": {}}


@pytest.mark.parametrize("history", [skill_history, team_history])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "record 1 is a int, not an object"),
        ('[{"loss": NaN}]', "holds NaN, which is no JSON"),
        ('[{"step": 1, "step": 2}]', "key step stands twice"),
        ('[{"step": 1}', "not JSON at line 1: .*; it may be cut off"),
    ],
)
def test_history_of_a_loop_that_is_no_list_of_objects_is_refused(
    history: ModuleType, text: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "history.json").write_text(text)
    with pytest.raises(InputError, match=said):
        history.read(tmp_path / "history.json", runs=tmp_path)


def test_metrics_of_train_without_epochs_are_refused(result: Path) -> None:
    """Without them no training would be told to be learnt by heart."""
    told = json.loads((result / "metrics/train.json").read_text())
    del told["epochs"]
    assert "key epochs is missing" in refusal("train", told)
