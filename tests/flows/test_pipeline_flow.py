"""The flow on a toy project: real Prefect, real DVC, a path with a space and letters outside ASCII."""

from __future__ import annotations

import json
import signal
import sqlite3
import time
from pathlib import Path

import pytest
from test_stage_process import alive, wait_for_pids

from toy_project import Toy

pytestmark = pytest.mark.slow

PARAMS = "a: {{number: 1}}\nleft: {{fail: {fail}, sleep: {sleep}}}\nright: {{}}\nend: {{}}\n"


def states(home: Path) -> dict[str, str]:
    """Task name -> name of its final state, from the server's database, for the newest flow run."""
    with sqlite3.connect(home / "prefect.db") as database:
        newest = database.execute("select id from flow_run order by created desc limit 1").fetchone()[0]
        rows = database.execute("select name, state_name from task_run where flow_run_id = ?", (newest,)).fetchall()
    return dict(rows)


def artifacts(home: Path) -> dict[str, str]:
    with sqlite3.connect(home / "prefect.db") as database:
        return dict(database.execute("select key, type from artifact where key is not null").fetchall())


def test_flow_runs_everything_side_by_side_and_shows_it(toy: Toy, prefect_home: Path) -> None:
    ran = toy.flow()
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "pipeline: 4 Ran" in ran.stdout
    assert json.loads((toy.root / "metrics/end.json").read_text()) == {"left": "1left", "right": "1right"}
    assert states(prefect_home) == {"a": "Ran", "left": "Ran", "right": "Ran", "end": "Ran"}
    shown = artifacts(prefect_home)
    assert shown["metrics"] == "table"
    assert shown["pipeline-progress"] == shown["left-progress"] == "progress"
    started = {name: ran.stderr.index(f"> python work.py {name}") for name in ("left", "right")}
    ended = {name: ran.stderr.index(f"Task run '{name}' - Finished") for name in ("left", "right")}
    assert max(started.values()) < min(ended.values()), "the independent stages did not overlap"
    assert "step 1/2 of a in ü" in ran.stderr


def test_flow_runs_stages_that_take_all_cores_one_after_the_other(toy: Toy) -> None:
    text = (toy.root / "dvc.yaml").read_text()
    for name in ("left", "right"):
        text = text.replace(f"params: [{name}]", f"params: [{name}]\n    meta: {{all_cores: true}}")
    text = text.replace("    meta: {retries: 0, timeout: 120}\n", "")
    toy.write("dvc.yaml", text)
    ran = toy.flow()
    assert ran.returncode == 0, ran.stdout + ran.stderr
    started = {name: ran.stderr.index(f"> python work.py {name}") for name in ("left", "right")}
    ended = {name: ran.stderr.index(f"Task run '{name}' - Finished") for name in ("left", "right")}
    assert max(started.values()) > min(ended.values()), "both ran at once"


def test_flow_says_cached_and_skipped_and_starts_nothing_for_what_is_unchanged(toy: Toy, prefect_home: Path) -> None:
    Toy.repro(toy.root)
    first = (toy.root / "metrics/end.json").read_bytes()
    toy.write("params.yaml", PARAMS.format(fail="false", sleep="0.01"))
    Toy.repro(toy.root)
    toy.write("params.yaml", PARAMS.format(fail="false", sleep="0"))
    ran = toy.flow()
    assert ran.returncode == 0, ran.stdout + ran.stderr
    got = states(prefect_home)
    assert got == {"a": "Skipped", "left": "Cached", "right": "Skipped", "end": "Skipped"}
    assert not (toy.root / ".ratchet/logs/right.log").exists()
    assert (toy.root / "metrics/end.json").read_bytes() == first


def test_flow_failing_stage_puts_its_own_error_on_top_and_stops_only_those_below(toy: Toy, prefect_home: Path) -> None:
    toy.write("params.yaml", PARAMS.format(fail="true", sleep="0"))
    ran = toy.flow()
    assert ran.returncode == 2
    tail = ran.stderr[ran.stderr.index("stage left failed:\n") :]
    assert "left: fail = True; set it to false" in tail
    assert "next: mend it" in tail
    assert "Traceback" not in ran.stderr
    got = states(prefect_home)
    assert (got["left"], got["right"], got["end"]) == ("Failed", "Ran", "NotReady")


@pytest.mark.parametrize("code", [130, 143])
def test_flow_stage_that_was_asked_to_end_is_stopped_not_failed(toy: Toy, prefect_home: Path, code: int) -> None:
    source = (toy.root / "work.py").read_text(encoding="utf-8")
    said = "left: stopped by SIGTERM after step 1 of 2, which is saved"
    stops = source.replace("left: fail = True; set it to false", said).replace("sys.exit(2)", f"sys.exit({code})")
    toy.write("work.py", stops)
    toy.write("params.yaml", PARAMS.format(fail="true", sleep="0"))
    ran = toy.flow()
    assert ran.returncode == 130, ran.stdout + ran.stderr
    assert f"stage left was stopped:\n{said}\nnext: ratchet run (goes on where it stopped)\n" in ran.stderr
    assert "failed:" not in ran.stderr
    got = states(prefect_home)
    assert (got["left"], got["right"]) == ("Stopped", "Ran")
    assert got["end"] in {"NotReady", "Cancelled"}, (
        "told by what it waits for, or by the flow that ends: the first wins"
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "term"])
def test_flow_stopped_by_a_signal_leaves_no_process(toy: Toy, number: signal.Signals) -> None:
    toy.write("params.yaml", PARAMS.format(fail="false", sleep="300"))
    flow = toy.popen()
    pids = wait_for_pids(toy.root, patience_s=150)
    flow.send_signal(number)
    output = flow.communicate(timeout=90)[0]
    assert flow.returncode == 130, output
    assert "stopped; what was finished is kept" in output
    assert "Traceback" not in output
    time.sleep(0.2)
    assert not any(alive(pid) for pid in pids)


def test_flow_stage_over_its_time_limit_fails_and_is_killed(toy: Toy, prefect_home: Path) -> None:
    toy.write("params.yaml", PARAMS.format(fail="false", sleep="300"))
    text = (toy.root / "dvc.yaml").read_text()
    toy.write("dvc.yaml", text.replace("params: [left]", "params: [left]\n    meta: {timeout: 20}"))
    ran = toy.flow("--until", "left")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert states(prefect_home)["left"] == "TimedOut"
    assert not any(alive(pid) for pid in wait_for_pids(toy.root))
