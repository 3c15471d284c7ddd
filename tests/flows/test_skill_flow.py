"""The flow `skill` with real Prefect and real DVC on a toy skill behind a local endpoint: started, stopped, resumed."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

import misbehaving_llm as bad
import toy_skill
from flows import skill
from misbehaving_llm import MisbehavingLlm
from prefect_server import said_by
from ratchet.core.rundir import list_runs
from toy_project import Toy

FREE = 70
"""Answers before the endpoint waits: the seed document's evaluation, a step, and some of the next."""

DVC_YAML = """
    stages:
      skill:
        cmd: python -m steps.skill
        deps: [skills]
        params: [skill]
        outs: [data/skill, data/skill-provenance.json]
        metrics: [metrics/skill.json: {cache: false}]
    """


def make_project(toy: Toy, url: str) -> None:
    """Put the toy skill, its models at `url`, in place of the toy's stages."""
    toy_skill.make_project(toy.root)
    roles = {"target": {"base_url": url}, "optimizer": {"base_url": url}}
    toy.write("params.yaml", yaml.safe_dump({"skill": toy_skill.merge(toy_skill.TOY, roles)}))
    toy.write("dvc.yaml", DVC_YAML)
    toy.commit()


def flow(toy: Toy, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m flows.skill` in the project."""
    return toy.sh(sys.executable, "-m", "flows.skill", *arguments, check=False)


@contextmanager
def started(toy: Toy) -> Iterator[subprocess.Popen[str]]:
    """`python -m flows.skill start` under way; it is no more when the block ends."""
    command = [sys.executable, "-m", "flows.skill", "start"]
    with subprocess.Popen(
        command, cwd=toy.root, env=toy.environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_skill_flow_is_stopped_after_a_step_and_resumed_to_its_end_and_asks_nothing_twice(
    toy: Toy, prefect_home: Path
) -> None:
    goes_on = threading.Event()

    def answer(body: bad.Body) -> str:
        if len(server.asked) > FREE:
            goes_on.wait(300)
        return toy_skill.respond(body["model"], body["messages"])

    with MisbehavingLlm([], answer) as server:
        make_project(toy, server.url)
        idle = flow(toy, "stop")
        assert idle.returncode == 2
        said = "skill: which training? running: none; name one, or see `ratchet status`"
        assert said in idle.stderr.splitlines(), idle.stderr  # Prefect may say something after it
        with started(toy) as training:
            until = time.monotonic() + 300
            while (
                len(server.asked) <= FREE or not said_by("skill-training", prefect_home)
            ) and time.monotonic() < until:
                assert training.poll() is None, training.communicate()[0]
                time.sleep(0.2)
            asked = flow(toy, "stop")
            assert "ends after its present step" in asked.stdout, asked.stderr
            goes_on.set()
            said = training.communicate(timeout=300)[0]
        assert training.returncode == 130, said
        assert "the training was stopped; it can go on" in said
        run = list_runs(toy.root / "runs")[0]
        assert (run.state, run.seq) == ("stopped", 3), "the seed document, the first step, the step that was under way"
        assert not (toy.root / "data/skill").exists()
        resumed = flow(toy, "resume", run.fingerprint[:6])
        assert resumed.returncode == 0, resumed.stdout + resumed.stderr
        assert "skill: see data/skill/summary.json" in resumed.stdout
        bodies = [json.dumps(body, sort_keys=True) for body in server.asked]
    assert len(bodies) == len(set(bodies))
    assert len(json.loads((toy.root / "data/skill/history.json").read_text())) == 6
    assert said_by("skill-training", prefect_home)[0].startswith("1 steps, best validation"), "shown while it ran"
    assert said_by("skill-training", prefect_home)[-1].startswith("6 steps, best validation")


def test_steps_are_read_from_a_run_and_from_what_it_published(tmp_path: Path) -> None:
    assert skill.rows_at(tmp_path) == []
    lines = [json.dumps({"seq": seq, "record": {"step": seq}}) for seq in range(3)]
    (tmp_path / "ledger.jsonl").write_text("\n".join([*lines, '{"seq": 3, "rec']))
    assert skill.rows_at(tmp_path) == [{"step": 1}, {"step": 2}]
    (tmp_path / "history.json").write_text('[{"step": 1}]')
    assert skill.rows_at(tmp_path) == [{"step": 1}]
