"""`ratchet alerts`: what it says of the tables that are there, on the screen and to a program."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

import made_result
from ratchet import cli
from ratchet.core.errors import InputError


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A made-up result without alerts, as the working directory's project."""
    made_result.make_result(tmp_path, steps=120, documents=20)
    for loop in ("skill", "team"):
        write_summary(tmp_path, loop, [])
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    return tmp_path


GATE = {"severity": "note", "what": "the gate accepts all", "evidence": "all 4", "do": "enlarge the validation split"}


def write_summary(project: Path, loop: str, alerts: list[dict[str, str]]) -> None:
    path = project / f"data/{loop}/summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"alerts": alerts}))


def spoil_training(project: Path) -> None:
    """The learning rate of half of the steps falls to a tenth."""
    path = project / "data/train/history.tsv"
    table = pd.read_csv(path, sep="\t")
    table.loc[60:90, "lr_scale"] = 0.1
    table.to_csv(path, sep="\t", index=False)


def test_good_results_have_no_alerts_and_what_was_looked_at_is_told(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.alerts()
    told = capsys.readouterr().out
    assert told == "no alerts\nlooked at: train, evaluate, iterate, skill, team\nnext: ratchet report --open\n"


def test_alerts_of_every_loop_are_told_with_what_to_do(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil_training(project)
    metrics = project / "metrics/iterate.json"
    values = json.loads(metrics.read_text())
    values["test"] |= {"gain": 0.001, "lower": -0.01, "upper": 0.012}
    metrics.write_text(json.dumps(values))
    write_summary(project, "skill", [GATE])
    cli.alerts(as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["looked_at"] == ["train", "evaluate", "iterate", "skill", "team"]
    assert [(alert["stage"], alert["what"]) for alert in told["alerts"]] == [
        ("train", "the learning rate jumps"),
        ("iterate", "the gain does not carry over to the test split"),
        ("skill", "the gate accepts all"),
    ]
    assert [alert["severity"] for alert in told["alerts"]] == ["warning", "warning", "note"]
    cli.alerts()
    screen = " ".join(capsys.readouterr().out.split())
    assert "train !! the learning rate jumps: its multiplier goes from 1 to 0.1 at step 61" in screen
    assert "compare it with the arena's schedule()" in screen


def test_what_was_not_published_is_left_out_and_nothing_at_all_is_an_error(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "metrics/evaluate.json").unlink()
    for name in ("iterate", "skill", "team", "train/timing"):
        shutil.rmtree(project / "data" / name)
    cli.alerts()
    assert "looked at: train\n" in capsys.readouterr().out
    shutil.rmtree(project / "data")
    with pytest.raises(InputError, match="no stage has published a table yet"):
        cli.alerts()


@pytest.mark.parametrize(
    ("text", "said"),
    [("[", "not JSON at line 1"), ("{}", "not a list"), ('[{"seq": 0}]', "tokens_per_s"), ("[]", "holds no row")],
)
def test_team_timing_that_is_none_is_an_error_that_names_it(project: Path, text: str, said: str) -> None:
    (project / "data/team-timing.json").write_text(text)
    with pytest.raises(InputError, match=rf"team-timing\.json: .*{said}.*dvc repro --force team"):
        cli.alerts()


def test_summary_that_is_none_is_an_error_that_names_the_stage(project: Path) -> None:
    for text in ("[1]", '{"alerts": ["a text"]}', '{"alerts": [{"severity": "loud"}]}'):
        (project / "data/team/summary.json").write_text(text)
        with pytest.raises(InputError, match="dvc repro --force team"):
            cli.alerts()
