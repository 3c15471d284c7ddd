"""`ratchet compare`: the working tree, revisions with their DVC outputs, experiments and runs, side by side."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import made_session
from ratchet.cli import app
from ratchet.commands import compare_markdown, differences, versions
from ratchet.commands.versions import Version
from ratchet.core.errors import InputError
from ratchet.core.ledger import Ledger
from ratchet.core.rundir import open_run
from ratchet.settings import settings
from ratchet.tables.intervals import Figure

ARENA = "DEPTH = 4\nWIDTH = 256\n"


def documents(bpb: float, *, count: int = 200, seed: int = 0) -> pd.DataFrame:
    """A judged split whose documents need `bpb` bits per byte on average."""
    noise = 0.1 * np.random.default_rng(seed).standard_normal(count)
    sizes = np.full(count, 400)
    return pd.DataFrame({"document": range(count), "bytes": sizes, "nats": (bpb + noise) * sizes * math.log(2)})


def sh(project: Path, *command: str) -> str:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"}
    return subprocess.run(
        command, cwd=project, env=environment, check=True, capture_output=True, text=True
    ).stdout.strip()


def write(project: Path, *, seed: int, val_bpb: float, arena: str) -> None:
    """What a pipeline leaves: parameters, arena and metrics in git, curve and documents as DVC's outputs."""
    for folder in ("arena", "metrics", "data/train", "data/evaluate"):
        (project / folder).mkdir(parents=True, exist_ok=True)
    (project / "params.yaml").write_text(f"train: {{seed: {seed}, horizon: {{unit: steps, value: 20}}}}\n")
    (project / "arena/train.py").write_text(arena)
    (project / "metrics/evaluate.json").write_text(json.dumps({"val_bpb": val_bpb, "probe": {"verdict": "clean"}}))
    losses = "".join(f"{step}\t{4 + val_bpb / step}\n" for step in range(1, 21))
    (project / "data/train/history.tsv").write_text("step\tloss\n" + losses)
    team = [{"env_step": 8 * n, "reward_mean": 0.1 * n * val_bpb} for n in (1, 2, 3)]
    (project / "data/team").mkdir(exist_ok=True)
    (project / "data/team/history.json").write_text(json.dumps(team))
    documents(val_bpb, seed=seed).to_parquet(project / "data/evaluate/documents.parquet")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with the commits `before` and `after`, each with its outputs in DVC's cache."""
    root = tmp_path / "с пробелом ü"
    root.mkdir()
    monkeypatch.chdir(root)
    settings.cache_clear()
    dvc = (sys.executable, "-m", "dvc")
    sh(root, "git", "init", "-q", "-b", "main")
    sh(root, *dvc, "init", "-q")
    outs = ["data/train/history.tsv", "data/evaluate/documents.parquet", "data/team"]
    (root / "dvc.yaml").write_text(json.dumps({"stages": {"all": {"cmd": "true", "outs": outs}}}))
    (root / ".gitignore").write_text("/data/\n/runs/\n/.ratchet/\n")
    for tag, seed, val_bpb, arena in (("before", 1, 1.7, ARENA), ("after", 2, 1.6, ARENA.replace("4", "6"))):
        write(root, seed=seed, val_bpb=val_bpb, arena=arena)
        sh(root, *dvc, "commit", "-q", "-f")
        sh(root, "git", "add", "-A")
        sh(root, "git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-q", "-m", tag)
        sh(root, "git", "tag", tag)
    return root


def plain(*arguments: str) -> dict[str, Any]:
    ran = CliRunner().invoke(app, ["compare", *arguments, "--json"])
    assert ran.exit_code == 0, ran.output
    return json.loads(ran.stdout)


def test_compare_of_two_revisions_has_params_metrics_gain_curves_and_code(project: Path) -> None:
    told = plain("before", "after")
    assert told["params"] == {"train.seed": {"a": 1, "b": 2}}, "what is equal is no difference"
    judged = told["metrics"]["evaluate.val_bpb"]
    assert (judged["a"], judged["b"]) == (1.7, 1.6)
    for side in "ab":
        low, high = judged[f"{side}_interval"]
        assert 0 < high - low < 0.1
        assert (low + high) / 2 == pytest.approx(judged[side], abs=0.03)
    assert told["metrics"]["evaluate.probe.verdict"] == {"a": "clean", "b": "clean"}, "no interval, no key"
    assert told["gain"]["gain"] == pytest.approx(0.1, abs=0.02)
    assert told["gain"]["low"] < told["gain"]["gain"] < told["gain"]["high"]
    assert [point["step"] for point in told["curves"]] == list(range(2, 21, 2))
    assert told["curves"][0]["a"] == pytest.approx(4 + 1.7 * (1 + 1 / 2) / 2)
    assert told["diff"][3:5] == ["-DEPTH = 4", "+DEPTH = 6"]


def test_compare_reads_numbers_as_dvc_does(project: Path) -> None:
    """PyYAML alone takes 1e-3 for a text."""
    for name, value in (("one", "1e-3"), ("other", "0.001")):
        (project / name).mkdir()
        (project / name / "dvc.yaml").touch()
        (project / name / "params.yaml").write_text(f"train: {{rate: {value}}}\n")
    assert plain("one", "other")["params"] == {}
    assert versions.read("one", project).params == {"train.rate": 0.001}


@pytest.mark.parametrize(("text", "said"), [("train: {seed", "not YAML: "), ("[1]", "holds a list, not a mapping")])
def test_compare_of_a_version_whose_parameters_cannot_be_read_is_one_line(text: str, said: str, project: Path) -> None:
    (project / "params.yaml").write_text(text)
    with pytest.raises(
        InputError, match=rf"^params\.yaml of \.: {said}.*; name a revision whose parameters can be read"
    ):
        versions.read(".", project)


@pytest.mark.parametrize(("text", "said"), [("{", "not JSON: "), ("[1]", "holds a list, not an object")])
def test_compare_of_a_version_whose_metrics_cannot_be_read_is_one_line(text: str, said: str, project: Path) -> None:
    (project / "metrics/train.json").write_text(text)
    with pytest.raises(InputError, match=rf"^metrics/train\.json of \.: {said}.*; name another revision"):
        versions.read(".", project)


def test_compare_of_a_revision_from_before_the_remote_fetches_from_it(project: Path, tmp_path: Path) -> None:
    sh(project, sys.executable, "-m", "dvc", "remote", "add", "-q", "-d", "store", str(tmp_path / "remote"))
    shutil.move(project / ".dvc/cache", tmp_path / "remote")  # `dvc push` leaves out what is older than the remote
    told = plain("before", "after")
    assert told["gain"]["gain"] == pytest.approx(0.1, abs=0.02)
    assert not any("documents" in line for line in told["not_compared"])


def test_compare_takes_commits_and_experiments_of_dvc_by_name(project: Path) -> None:
    commit = sh(project, "git", "rev-parse", "before")
    sh(project, "git", "update-ref", "refs/exps/ab/cdef/brisk-otter", "after")
    told = plain(commit[:9], "brisk-otter")
    assert told["gain"]["gain"] == pytest.approx(0.1, abs=0.02)
    assert (told["a"]["what"], told["b"]["name"]) == (f"commit {commit[:10]}", "brisk-otter")


def test_compare_writes_one_page_with_params_intervals_curves_and_code(project: Path, tmp_path: Path) -> None:
    path = tmp_path / "a page.html"
    ran = CliRunner().invoke(app, ["compare", "before", "after", "--html", str(path)])
    assert ran.exit_code == 0, ran.output
    assert f"page: {path}" in ran.stdout.replace("\n", "")
    text = path.read_text()
    parts = (
        *("0.0934 bits per byte", "<wbr>seed", "evaluate.<wbr>val_<wbr>bpb", "<ins>+DEPTH = 6</ins>"),
        *('id="compare-training-loss"', 'id="compare-team-reward"', "default-src 'none'"),
    )
    for part in parts:
        assert part in text, part
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")


def test_compare_shows_each_figure_with_its_interval(project: Path) -> None:
    ran = CliRunner().invoke(app, ["compare", "before", "after"])
    assert re.search(r"evaluate\.val_bpb +1\.7 \(1\.\d+ to 1\.\d+\) +1\.6 \(1\.\d+ to 1\.\d+\) +-0\.1", ran.stdout)
    assert "_interval" not in ran.stdout


def test_compare_of_runs_of_the_other_loops_has_their_courses(project: Path) -> None:
    """What is in a run directory while it still goes on: a team's updates, a skill's steps, a session's rows."""
    rows = {"team": {"env_step": 8, "reward_mean": 0.3}, "skill": {"step": 1, "best_score": 0.5}}
    with open_run("team", {"params": {"seed": 1}, "inputs": {}}, {}, runs=project / "runs") as run:
        (run.path / "updates.jsonl").touch()
        Ledger(run.path / "updates.jsonl").put(0, rows["team"])
    with open_run("skill", {"params": {"seed": 1}, "inputs": {}}, {}, runs=project / "runs") as run:
        for seq, step in enumerate((0, 1)):
            run.ledger.put(seq, {"record": rows["skill"] | {"step": step}})
    team, skill = (versions.read(loop, project) for loop in ("team", "skill"))
    assert team.courses["team"].to_numpy().tolist() == [[8.0, 0.3]]
    assert skill.courses["skill"].to_numpy().tolist() == [[1.0, 0.5]]
    assert (team.metrics["team.last"], skill.metrics["skill.last"]) == (0.3, 0.5)


def test_compare_with_the_working_tree_takes_uncommitted_changes(project: Path) -> None:
    write(project, seed=3, val_bpb=1.5, arena=ARENA)
    told = plain("after", ".")
    assert told["params"] == {"train.seed": {"a": 2, "b": 3}}
    assert told["gain"]["gain"] == pytest.approx(0.1, abs=0.02)
    assert plain(".", ".")["diff"] == []


def test_compare_says_what_a_revision_lacks_and_goes_on(project: Path) -> None:
    for file in (project / ".dvc/cache").rglob("*"):
        if file.is_file():
            file.chmod(0o644)
            file.unlink()
    told = plain("before", ".")
    assert told["gain"] is None
    assert "before: data/evaluate/documents.parquet" in told["not_compared"]
    assert any(line.startswith("before: data/team/history.json (DataIndexDirError: ") for line in told["not_compared"])
    assert told["metrics"]["evaluate.val_bpb"]["a"] == 1.7
    assert told["metrics"]["evaluate.val_bpb"]["b"] == 1.6


def test_compare_of_two_experiments_reads_their_rows(project: Path) -> None:
    made_session.make_session(project)
    rows = pd.read_csv(project / "data/iterate/results.tsv", sep="\t", dtype={"commit": str})
    scored = rows[rows["val_bpb"].notna()]
    one, other = scored["commit"].iloc[0], scored["commit"].iloc[-1]
    told = plain(one, other)
    assert told["metrics"]["val_bpb"] == {"a": scored["val_bpb"].iloc[0], "b": scored["val_bpb"].iloc[-1]}
    assert told["a"]["what"].startswith("experiment, keep: ")


def test_compare_of_two_runs_reads_their_ledgers(project: Path) -> None:
    for seed in (1, 2):
        identity = {"params": {"seed": seed}, "inputs": {}}
        with open_run("train", identity, {}, runs=project / "runs") as run:
            rows = [{"step": step, "loss": 4.0 / step + seed} for step in range(1, 6)]
            run.ledger.put(0, {"rows": rows})
            (run.path / "arena.py").write_text(ARENA)
    one, other = (path.name for path in sorted((project / "runs/train").iterdir()))
    told = plain(f"train/{one}", other)
    assert set(told["params"]) == {"train.seed"}
    assert len(told["curves"]) == 5
    assert abs(told["curves"][0]["a"] - told["curves"][0]["b"]) == pytest.approx(1.0)


def test_compare_of_other_documents_gives_no_gain_and_says_so() -> None:
    one = Version("a", "", documents=documents(1.7))
    other = Version("b", "", documents=documents(1.6, count=100))
    found = differences.between(one, other)
    assert found.gain is None
    assert found.without == ["compare: the judgements are not of the same documents; judge both on one split"]


def test_compare_draws_both_curves(project: Path, tmp_path: Path) -> None:
    ran = CliRunner().invoke(app, ["compare", "before", "after", "--png", str(tmp_path / "curves.png")])
    assert ran.exit_code == 0, ran.output
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "B saves +0.0934" in ran.stdout
    assert "+DEPTH = 6" in ran.stdout


def test_compare_with_the_folder_of_another_checkout_reads_what_lies_there(project: Path) -> None:
    sh(project, "git", "worktree", "add", "-q", ".ratchet/base", "before")
    write(project / ".ratchet/base", seed=1, val_bpb=1.7, arena=ARENA)
    told = plain(".ratchet/base", ".")
    assert told["metrics"]["evaluate.val_bpb"]["a"] == 1.7
    assert told["metrics"]["evaluate.val_bpb"]["b"] == 1.6
    assert told["gain"]["gain"] == pytest.approx(0.1, abs=0.02)


def test_compare_as_markdown_has_what_differs_and_no_more(project: Path) -> None:
    ran = CliRunner().invoke(app, ["compare", "before", "after", "--markdown"])
    assert ran.exit_code == 0, ran.output
    blocks = ran.stdout.split("\n\n")
    commit = sh(project, "git", "rev-parse", "before")[:10]
    assert blocks[0].startswith(f"A is `before`, `commit {commit}`; B is `after`, ")
    assert blocks[1].startswith("B saves +0.0934")
    head, _, row = blocks[2].splitlines()
    assert head == "| metric | A | B | B - A |"
    assert re.fullmatch(r"\| `evaluate\.val_bpb` \| `1\.7 \(1\.\d+ to 1\.\d+\)` \| `1\.6 \(.*\)` \| -0\.1 \|", row), row
    assert blocks[3] == "1 of 2 metrics are the same."
    assert "| `train.seed` | `1` | `2` | +1 |" in blocks[4]
    assert (blocks[5], blocks[7]) == ("<details><summary>arena/train.py</summary>", "</details>")
    assert blocks[6].startswith("```diff\n--- ")
    assert "+DEPTH = 6" in blocks[6]


def test_markdown_of_a_strangers_values_is_code_and_fits_into_a_comment() -> None:
    nasty = "`@all` | <b>\n# [x](http://h)"
    rows = [(f"m.{number} {nasty}", nasty * 20, nasty) for number in range(100)]
    diff = ["````", *(f"+{nasty * 9}" for _ in range(1000))]
    figures = [(name, Figure(one), Figure(other)) for name, one, other in rows]
    found = differences.Comparison(rows, figures, None, [], diff, [nasty] * 100)
    text = compare_markdown.page(Version("a", nasty), Version("b", ""), found)
    assert 40_000 < len(text) < 65_536
    assert text.count("<details>") == text.count("</details>") == 1
    assert "… and 60 more" in text
    assert text.count("- not compared: `") == 40
    prose = re.sub(r"`[^`\n]*`", "", re.sub(r"(?ms)^(`{3,})diff$.*^\1$", "", text))
    assert "@" not in prose
    assert "<b>" not in prose
    rows_of_tables = [line for line in text.splitlines() if line.startswith("| `m.")]
    assert len(rows_of_tables) == 80
    assert {line.count("|") for line in rows_of_tables} == {5}
    small = compare_markdown.page(
        Version("a", ""), Version("b", ""), differences.Comparison([], [], None, [], diff[:2], [])
    )
    assert "\n`````diff\n````\n+" in small, "a fence that the diff cannot close"


def test_compare_of_a_name_that_means_nothing_is_one_line(project: Path) -> None:
    with pytest.raises(InputError, match=r"'nowhere' is no run, no experiment of .* and no revision of git; see"):
        versions.read("nowhere", project)
