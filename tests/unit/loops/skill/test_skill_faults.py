"""Each fault seen in the published system (FINDINGS, section 2) is one test here, or named where it is tested."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import toy_skill
from ratchet.core.errors import InputError
from ratchet.core.rundir import list_runs
from ratchet.llm.scripted import Scripted
from ratchet.loops.skill import session
from ratchet.loops.skill.parameters import SkillParams
from ratchet.loops.skill.state import Version, initial, state_from
from ratchet.params import validate

ROOT = Path(__file__).resolve().parents[4]
SMALL: dict[str, Any] = {"tasks": {"val_size": 8, "test_size": 4}, "limit": 8, "batch_size": 4, "minibatch_size": 2}


@pytest.fixture(autouse=True)
def no_real_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing dies here."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_skill.make_project(tmp_path_factory.mktemp("toy"))


def test_fault_results_in_thread_order_same_seed_and_any_workers_give_one_skill(project: Path, tmp_path: Path) -> None:
    found = {
        toy_skill.results(toy_skill.run(toy_skill.request(project, workers=w), tmp_path / str(w))[1])
        for w in (1, 8, 24)
    }
    assert len(found) == 1


def test_fault_score_zero_restored_as_minus_one() -> None:
    version = Version("x", values=(0.0, 0.0), score=0.0)
    state = state_from(json.loads(json.dumps(initial("").public() | {"current": version.__dict__ | {"scores": None}})))
    assert state.current.score == 0.0
    assert state.best.score is None


def test_fault_torn_record_of_calls_is_mended_and_the_run_goes_on(project: Path, tmp_path: Path) -> None:
    made = toy_skill.request(project, **SMALL, stop_at=1)
    toy_skill.run(made, tmp_path)
    path = list_runs(tmp_path / "runs")[0].path
    for name in ("target.jsonl", "ledger.jsonl"):
        with (path / name).open("ab") as file:
            file.write(b'{"seq": 2, "rec')
    ending, whole = toy_skill.run(toy_skill.request(project, **SMALL), tmp_path)
    assert ending.finished
    _, unbroken = toy_skill.run(toy_skill.request(project, **SMALL), tmp_path / "unbroken")
    assert toy_skill.results(whole) == toy_skill.results(unbroken)


def test_fault_two_processes_share_a_directory_without_a_lock(project: Path, tmp_path: Path) -> None:
    made = toy_skill.request(project, **SMALL)
    with session.open_session(made, toy_skill.settings(tmp_path)):
        code = (
            "import sys; sys.path.insert(0, sys.argv[1])\nimport toy_skill\nfrom pathlib import Path\n"
            "from ratchet.loops.skill import session\n"
            "made = toy_skill.request(Path(sys.argv[2]), **eval(sys.argv[3]))\n"
            "session.open_session(made, toy_skill.settings(Path(sys.argv[4])))\n"
        )
        second = subprocess.run(
            [sys.executable, "-c", code, str(ROOT / "tests/support"), str(project), repr(SMALL), str(tmp_path)],
            capture_output=True, text=True, cwd=ROOT, check=False,
        )  # fmt: skip
    assert second.returncode != 0
    assert f"is in use by pid {os.getpid()}" in second.stderr


def test_fault_changed_seed_document_starts_fresh(project: Path, tmp_path: Path) -> None:
    (project / "skills/seed.md").write_text("Be brief.\n")
    try:
        toy_skill.run(toy_skill.request(project, **SMALL, stop_at=1), tmp_path)
        seeded = toy_skill.request(project, **SMALL, stop_at=1, skill_init=str(project / "skills/seed.md"))
        _, second = toy_skill.run(seeded, tmp_path)
        (project / "skills/seed.md").write_text("Be kind.\n")
        toy_skill.run(
            toy_skill.request(project, **SMALL, stop_at=1, skill_init=str(project / "skills/seed.md")), tmp_path
        )
    finally:
        (project / "skills/seed.md").unlink()
    assert second.state.current.text.startswith("Be brief.")
    assert len(list_runs(tmp_path / "runs")) == 3


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"minibach_size": 4}, "unknown key 'skill.minibach_size'; did you mean 'minibatch_size'?"),
        ({"target": {"modle": "x"}}, "unknown key 'skill.target.modle'; did you mean 'model'?"),
        ({"use_slow_update": "yes"}, "skill.use_slow_update = 'yes'"),
        ({"learning_rate": 2, "min_learning_rate": 3}, "is above learning_rate 2"),
        ({"lr": 2.5}, "skill.learning_rate = 2.5"),
        ({"target": {"base_url": "http://localhost/v1"}}, "base_url is set without a model"),
        ({"gate": "lenient"}, "skill.gate = 'lenient'"),
    ],
)
def test_fault_unknown_or_misspelt_option_is_refused_by_name(values: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as error:
        validate(values, "skill", SkillParams)
    assert said in str(error.value)


def test_fault_non_utf_8_locale_scores_the_same(project: Path, tmp_path: Path) -> None:
    """The published engine scores everything 0 there."""
    lines = [{"id": f"u{n}", "question": f"Wie heißt {n}?", "answers": [f"Straße Ä{n}"]} for n in range(30)]
    folder = tmp_path / "skills"
    folder.mkdir()
    (folder / "u.jsonl").write_text("".join(json.dumps(x, ensure_ascii=False) + "\n" for x in lines), encoding="utf-8")
    code = (
        "from pathlib import Path\nfrom ratchet.loops.skill.tasks import load\n"
        "from ratchet.loops.skill.parameters import TaskParams\n"
        "t = load(TaskParams(source='file', file='skills/u.jsonl', val_size=5, test_size=5), Path('skills'))\n"
        "print(sum(t.score(x, 'strasse \\u00e4' + x.id[1:]).hard for x in t['train']))\n"
    )
    env = {**os.environ, "LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONPATH": str(ROOT)}
    env["PYTHONCOERCECLOCALE"] = "0"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=env, check=True
    )
    assert done.stdout.strip() == "20"


def test_fault_dead_optimizer_does_not_end_with_exit_0_and_a_final_score(tmp_path: Path) -> None:
    """The whole stage as a process: exit code 3, the cause on one line, nothing published."""
    toy_skill.make_project(tmp_path)
    dead = {"model": "m", "base_url": "http://127.0.0.1:9/v1"}
    section = toy_skill.merge(toy_skill.TOY, {**SMALL, "target": dead, "optimizer": dead})
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"skill": section}))
    env = {**os.environ, "PYTHONPATH": str(ROOT), "RATCHET_LLM_ATTEMPTS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "steps.skill"], capture_output=True, text=True, cwd=tmp_path, env=env, check=False
    )
    assert done.returncode == 3, done.stderr
    assert "the endpoint does not work" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "data/skill").exists()
    assert not (tmp_path / "metrics/skill.json").exists()


def test_fault_no_dry_run_train_size_0_checks_everything_and_asks_nobody(tmp_path: Path) -> None:
    toy_skill.make_project(tmp_path)
    section = toy_skill.merge(copy.deepcopy(toy_skill.TOY), {"train_size": 0})
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"skill": section}))
    env = {**os.environ, "PYTHONPATH": str(ROOT), "RATCHET_STAGES_IN": "container"}
    command = [sys.executable, "-m", "steps.skill"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert "nobody was asked" in done.stdout
    assert "skill: runs outside a container: it asks models" in done.stderr
    assert "skill.learning_rate = 4  (default)" in done.stdout
    assert json.loads((tmp_path / "data/skill/history.json").read_text()) == []
    section["tasks"]["file"] = "skills/gone.jsonl"
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"skill": section}))
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, check=False)
    assert done.returncode == 2
    assert "skills/gone.jsonl: no such file" in done.stderr


def test_fault_gate_forces_slow_update_in_ours_is_gated(project: Path, tmp_path: Path) -> None:
    """Guidance that ruins the agent does not enter the document."""

    def ruined(call: Any) -> str:
        said = call.fields()["messages"][-1]["content"]
        if call.model == "agent" and "keep what works" in call.text():
            return "ruined"
        return toy_skill.respond(call.model, call.fields()["messages"]) if said else ""

    slow_learner = {"learning_rate": 1, "min_learning_rate": 1, "limit": 12}
    over = {**SMALL, **slow_learner, "use_slow_update": True, "slow_update_samples": 2}
    _, published = toy_skill.run(
        toy_skill.request(project, **over), tmp_path, Scripted(ruined), Scripted(toy_skill.scripted)
    )
    slow = [row["slow_update"] for row in published.history if row["slow_update"]]
    assert [each["action"] for each in slow] == ["reject"]
    assert "keep what works" not in published.state.best.text
    assert published.state.current.score == published.state.best.score
