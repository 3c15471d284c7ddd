"""Every knob has a published name, a default and a unit; short names work; all is echoed."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import toy_skill
from ratchet.commands import skill as commands
from ratchet.llm.scripted import Scripted
from ratchet.loops.skill import forecast, session, tasks
from ratchet.loops.skill.parameters import ALIASES, SkillParams, TaskParams
from ratchet.loops.skill.preflight import examine
from ratchet.loops.skill.tasks import TaskSet
from ratchet.params import Params, echo, merge, parse_override, validate
from steps import skill as step

FIELD = {"num_epochs": 2, "batch_size": 8, "minibatch": 4, "merge_batch": 4, "workers": 2, "lr": 4,
         "lr_sched": "cosine", "limit": 24}  # fmt: skip
"""The knobs of runs seen in the field, under their names."""


def test_params_of_a_run_seen_in_the_field_are_taken_as_they_are() -> None:
    found = validate(FIELD, "skill", SkillParams)
    assert (found.minibatch_size, found.merge_batch_size, found.learning_rate, found.lr_scheduler) == (
        4,
        4,
        4,
        "cosine",
    )
    assert (found.limit, found.workers) == (24, 2)


@pytest.mark.parametrize("short", ALIASES)
def test_short_name_lies_over_the_long_one_as_an_override_does(short: str) -> None:
    value = {"lr_sched": "linear", "skill_update_mode": "rewrite"}.get(short, 3)
    long = ALIASES[short]
    over = merge({long: getattr(SkillParams(), long)}, parse_override(f"skill.{short}={value}")["skill"])
    assert getattr(validate(over, "skill", SkillParams), long) == value


def test_override_with_dots_reaches_a_switch_and_a_nested_key() -> None:
    values = merge(parse_override("skill.use_slow_update=true"), parse_override("skill.target.temperature=0.5"))
    found = validate(values["skill"], "skill", SkillParams)
    assert found.use_slow_update
    assert found.target.temperature == 0.5


def test_echo_has_every_knob_and_says_what_was_filled_in() -> None:
    lines = echo(validate({"lr": 6}, "skill", SkillParams), "skill")
    assert "skill.learning_rate = 6" in lines
    assert "skill.min_learning_rate = 2  (default)" in lines
    assert len(lines) == count(SkillParams)
    assert not [line for line in lines if "SECRET" in line]


def count(model: type[Params]) -> int:
    fields = [field.annotation for field in model.model_fields.values()]
    return sum(count(a) if isinstance(a, type) and issubclass(a, Params) else 1 for a in fields)


def test_every_knob_is_described() -> None:
    assert all(field.description for field in SkillParams.model_fields.values())


def test_where_an_endpoint_is_and_what_it_costs_is_no_part_of_a_runs_identity() -> None:
    here = toy_skill.params()
    there = toy_skill.params(
        target={"base_url": "http://127.0.0.1:8/v1", "price": {"prompt": 2.0}, "budget": {"calls": 5}},
        workers=24, stop_at=3, extend_epochs=1,
    )  # fmt: skip
    assert here.defining() == there.defining()
    for over in ({"target": {"temperature": 1.0}}, {"optimizer": {"model": "other"}}, {"learning_rate": 5}):
        assert toy_skill.params(**over).defining() != here.defining()


def test_preflight_names_what_is_wrong_and_passes_what_is_right(tmp_path: Path) -> None:
    toy_skill.make_project(tmp_path)
    good = toy_skill.request(tmp_path).params
    here = toy_skill.settings(tmp_path)
    found = {each.what: each for each in examine(good, here, ask=False, folder=tmp_path / "skills")}
    assert all(each.good for each in found.values()), found
    assert found["splits"].found.startswith("train 30, val 20, test 20")
    slow = good.model_copy(update={"use_slow_update": True})
    said = {each.what: each for each in examine(slow, here, ask=False, folder=tmp_path / "skills")}
    assert said["slow_update"].found == "on: up to 61 calls more, from epoch 2"
    tiny = good.model_copy(update={"limit": 3, "gate": "paired"})
    assert not {each.what: each for each in examine(tiny, here, ask=False, folder=tmp_path / "skills")}["gate"].good
    for confidence, limit, enough in ((0.95, 5, True), (0.99, 5, False), (0.99, 7, True), (0.95, 4, False)):
        sure = good.model_copy(update={"limit": limit, "gate": "paired", "gate_confidence": confidence})
        said = {each.what: each for each in examine(sure, here, ask=False, folder=tmp_path / "skills")}
        assert said["gate"].good == enough, said["gate"].found
    gone = good.model_copy(update={"tasks": good.tasks.model_copy(update={"file": "skills/gone.jsonl"})})
    first = examine(gone, here, ask=False, folder=tmp_path / "skills")[0]
    assert not first.good
    assert "gone.jsonl" in first.found


def test_preflight_asks_each_endpoint_and_says_when_it_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy_skill.make_project(tmp_path)
    made = toy_skill.request(tmp_path).params
    found = {each.what: each for each in examine(made, toy_skill.settings(tmp_path), ask=True,
                                                 folder=tmp_path / "skills")}  # fmt: skip
    assert not found["target"].good
    assert "does not work" in found["target"].found


def test_forecast_is_not_below_what_a_run_really_asks_and_one_task_goes_through_every_phase(tmp_path: Path) -> None:
    made = toy_skill.request(toy_skill.make_project(tmp_path))
    guess = forecast.forecast(made)
    models = Scripted(toy_skill.scripted)
    lines = forecast.one_item(made, toy_skill.players(made, tmp_path, models, models))
    assert [line.split(":")[0].split(" ")[0] for line in lines] == [
        "rollout", "reflect", "aggregate", "select", "update", "gate", "slow_update", "meta_skill",
    ]  # fmt: skip
    session.code()
    _, published = toy_skill.run(made, tmp_path)
    tokens = published.summary["tokens"]
    asked = tokens["rollout"]["calls"] + published.summary["test_tokens"]["calls"]
    assert guess.target_calls >= asked > 0.5 * guess.target_calls
    assert guess.optimizer_calls >= tokens["analyst"]["calls"] > 0


def test_dry_run_without_training_tasks_prints_the_plan_and_asks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    toy_skill.make_project(tmp_path)
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"skill": toy_skill.TOY}))
    monkeypatch.chdir(tmp_path)
    commands.dry_run(["skill.train_size=0", "skill.num_epochs=1"])
    said = capsys.readouterr().out
    assert "plan: train_size is 0: everything is checked, nobody is asked" in said
    assert "one task: none, train_size is 0" in said
    assert not (tmp_path / "runs").exists()


def test_checks_of_the_published_dry_run_read_the_tasks_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[TaskParams] = []

    def counted(params: TaskParams, folder: Path) -> TaskSet:
        read.append(params)
        return tasks.load(params, folder)

    monkeypatch.chdir(toy_skill.make_project(tmp_path))
    monkeypatch.setattr(session, "load", counted)
    outputs = step.Outputs(tmp_path / "data/skill", tmp_path / "metrics/skill.json", tmp_path / "provenance.json")
    step.run(toy_skill.params(train_size=0, num_epochs=1), step.Inputs(), outputs)
    assert len(read) == 1
