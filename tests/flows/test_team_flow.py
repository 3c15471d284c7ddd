"""The flow `team` with real Prefect and real DVC on tiny agents and a reward of the project's own: stopped, resumed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows import team
from prefect_server import said_by
from ratchet.core.rundir import list_runs
from ratchet.loops.team.state import UPDATES_FILE
from toy_project import Toy

DVC_YAML = """
    stages:
      team:
        cmd: python -m steps.team
        deps: [team]
        params: [team]
        outs: [data/team, data/team-provenance.json, data/team-timing.json]
        metrics: [metrics/team.json: {cache: false}]
    """

REWARD = """
    import time
    from pathlib import Path

    def pay(first, second):
        log = Path(".ratchet/asked")
        log.parent.mkdir(exist_ok=True)
        with log.open("a") as file:
            file.write("x")
        while log.stat().st_size > {free} and not Path(".ratchet/go").exists():
            time.sleep(0.05)
        return [float(len(a) + len(b)) for a, b in zip(first, second)]
    """

FREE = 6
"""Rewards that are paid before the reward waits: the look before training, an update and some of the next."""

PARAMS: dict[str, Any] = {
    "task": None, "model": "tiny", "num_turns": 1, "num_train_epochs": 6, "num_generations": 2, "max_new_tokens": 4,
    "rollout_buffer_size": 2, "eval_interval": 0, "test_samples": 1,
    "data": {"reward": "team/slow.py:pay", "train": "team/train.jsonl", "evaluation": "team/eval.jsonl"},
}  # fmt: skip


def make_project(toy: Toy) -> None:
    """Put a team of tiny agents in place of the toy's stages."""
    toy.write("team/slow.py", REWARD.format(free=FREE))
    for name, prompts in (("train", "abcd"), ("eval", "xy")):
        toy.write(f"team/{name}.jsonl", "".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    toy.write("params.yaml", yaml.safe_dump({"team": PARAMS}))
    toy.write("dvc.yaml", DVC_YAML)
    toy.commit()


def flow(toy: Toy, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m flows.team` in the project."""
    return toy.sh(sys.executable, "-m", "flows.team", *arguments, check=False)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_team_flow_is_stopped_after_an_update_and_resumed_to_its_end(toy: Toy, prefect_home: Path) -> None:
    make_project(toy)
    command = [sys.executable, "-m", "flows.team", "start"]
    with subprocess.Popen(
        command, cwd=toy.root, env=toy.environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as training:
        try:
            until = time.monotonic() + 300
            while not said_by("team-training", prefect_home) and time.monotonic() < until:
                assert training.poll() is None, training.communicate()[0]
                time.sleep(0.2)
            asked = flow(toy, "stop")
            assert "ends after its present update" in asked.stdout, asked.stderr
            (toy.root / ".ratchet/go").touch()
            said = training.communicate(timeout=300)[0]
        finally:
            training.kill()
    assert training.returncode in (130, 143), said
    assert "the training was stopped; it can go on" in said
    run = list_runs(toy.root / "runs")[0]
    assert run.state == "stopped"
    assert not (toy.root / "data/team").exists()
    resumed = flow(toy, "resume", run.fingerprint[:6])
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert "team: see data/team/summary.json" in resumed.stdout
    history = json.loads((toy.root / "data/team/history.json").read_text())
    assert [row["env_step"] for row in history] == [4 * (n + 1) for n in range(12)], "2 prompts x 2, an update"
    timing = json.loads((toy.root / "data/team-timing.json").read_text())
    assert [row["env_step"] for row in timing if row["resumed"]] != []
    assert len(list((toy.root / "data/team/agents").iterdir())) == 2
    assert said_by("team-training", prefect_home)[-1].startswith("12 updates, reward ")


def test_updates_are_read_from_a_run_and_from_what_it_published(tmp_path: Path) -> None:
    assert team.rows_at(tmp_path) == []
    lines = [json.dumps({"seq": seq, "env_step": step}) for seq, step in enumerate((4, 8))]
    (tmp_path / UPDATES_FILE).write_text("\n".join([*lines, '{"seq": 2, "env_step": 12, "rew']))
    assert [row["env_step"] for row in team.rows_at(tmp_path)] == [4, 8]
    (tmp_path / "history.json").write_text('[{"env_step": 4}]')
    assert team.rows_at(tmp_path) == [{"env_step": 4}]
