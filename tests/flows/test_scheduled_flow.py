"""prefect.yaml on a real server with a real worker: deployed, triggered, killed in the middle, gone on, cancelled."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil
import pytest
import yaml

from power import unplug
from toy_project import PROJECT, Toy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PATIENCE_S = 150
JSON = {"Content-Type": "application/json"}
LONG = 600
"""Seconds that a stage sleeps which is to be interrupted."""


@pytest.fixture
def deployed(toy: Toy) -> Toy:
    """The toy with the flows and the deployments of this project, in a pool of its own."""
    shutil.copytree(PROJECT / "flows", toy.root / "flows", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PROJECT / "prefect.yaml", toy.root)
    toy.commit()
    if prefect(toy, "work-pool", "inspect", "ratchet", check=False).returncode:
        prefect(toy, "work-pool", "create", "ratchet", "--type", "process")
    prefect(toy, "deploy", "--all")
    return toy


def prefect(toy: Toy, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    ran = toy.sh(sys.executable, "-m", "prefect", "--no-prompt", *arguments, check=False)
    assert not check or ran.returncode == 0, ran.stdout + ran.stderr
    return ran


def ask(toy: Toy, path: str, body: object = None) -> Any:
    """The server's answer."""
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(f"{toy.api}/{path}", data, JSON), timeout=30) as answer:
        return json.load(answer)


def trigger(toy: Toy, name: str, **parameters: object) -> str:
    """The id of a new run of the deployment `name`."""
    options = [word for key, value in parameters.items() for word in ("--param", f"{key}={json.dumps(value)}")]
    told = prefect(toy, "deployment", "run", f"scheduled/{name}", *options).stdout
    found = re.search(r"[0-9a-f]{8}-[0-9a-f-]{27}", told)
    assert found, told
    return found[0]


@contextmanager
def worker(toy: Toy) -> Iterator[psutil.Process]:
    """A worker of the pool; it and all that it started are no more when the block ends."""
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", "ratchet", "--limit", "1"]
    log_of(toy).parent.mkdir(exist_ok=True)
    with log_of(toy).open("a") as log:
        process = subprocess.Popen(command, cwd=toy.root, env=toy.environment(), stdout=log, stderr=log)
    try:
        yield psutil.Process(process.pid)
    finally:
        unplug(psutil.Process(process.pid))
        process.wait()


def log_of(toy: Toy) -> Path:
    """What workers of `toy` said."""
    return toy.root / ".ratchet/worker.log"


def wait_for(toy: Toy, run: str, *kinds: str) -> dict[str, Any]:
    """The run when its state is one of `kinds`."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        found = ask(toy, f"flow_runs/{run}")
        if found["state_type"] in kinds:
            return found
        time.sleep(0.5)
    raise AssertionError(f"{found['state']}; {(toy.root / '.ratchet-worker.log').read_text()[-3000:]}")


def wait_until_left_sleeps(toy: Toy) -> Path:
    """The copy in which the stage `left` is under way."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        for log in toy.root.glob(".ratchet/copies/*/.ratchet/logs/left.log"):
            if "Running stage" in log.read_text():
                return log.parents[2]
        time.sleep(0.5)
    raise AssertionError(log_of(toy).read_text()[-3000:])


def test_every_deployment_is_on_the_server_with_its_schedule_and_never_runs_twice(deployed: Toy) -> None:
    wanted = {each["name"]: each for each in yaml.safe_load((PROJECT / "prefect.yaml").read_text())["deployments"]}
    found = {each["name"]: each for each in ask(deployed, "deployments/filter", {}) if each["name"] in wanted}
    assert found.keys() == wanted.keys()
    for name, each in found.items():
        schedules = [(one["schedule"]["cron"], one["schedule"]["timezone"]) for one in each["schedules"]]
        assert schedules == [(one["cron"], one["timezone"]) for one in wanted[name].get("schedules", [])]
        assert each["global_concurrency_limit"]["limit"] == 1
        assert each["concurrency_options"]["collision_strategy"] == "CANCEL_NEW"
        described = each["parameter_openapi_schema"]["properties"]
        assert all(one["description"] for one in described.values())
        with pytest.raises(HTTPError) as refused:
            ask(deployed, f"deployments/{each['id']}/create_flow_run", {"parameters": {"dirty": "sometimes"}})
        assert refused.value.code == 409
        assert b"'sometimes' is not one of ['refuse', 'mark']" in refused.value.read()


def test_run_that_died_with_its_worker_is_gone_on_with_by_the_next_and_kept_on_the_branch(deployed: Toy) -> None:
    asked = {"last": "end", "overrides": ["left.sleep=8", "a.number={night}"], "dirty": "refuse"}
    with worker(deployed) as first:
        run = trigger(deployed, "nightly-research", **asked)
        copy = wait_until_left_sleeps(deployed)
        unplug(first)
    assert (copy / "out/a").exists()
    ask(deployed, f"flow_runs/{run}/set_state", {"state": {"type": "CRASHED"}, "force": True})
    with worker(deployed):
        done = wait_for(deployed, trigger(deployed, "nightly-research", **asked), "COMPLETED", "FAILED", "CRASHED")
        assert done["state_type"] == "COMPLETED", done["state"]
        told = deployed.sh("git", "show", "ratchet/nightly:params.yaml").stdout
        assert "number: 0" in told
        assert [copy] == list((deployed.root / ".ratchet/copies").iterdir()), "the run that died and the next are one"
        assert deployed.sh("git", "rev-list", "--count", "main..ratchet/nightly").stdout.strip() == "1"
        deployed.write("work.py", (deployed.root / "work.py").read_text() + "\n# not committed\n")
        refused = wait_for(deployed, trigger(deployed, "nightly-research", **asked), "COMPLETED", "FAILED", "CRASHED")
        assert refused["state_type"] == "FAILED"
        assert "uncommitted changes: M work.py" in refused["state"]["message"]


def test_cancelled_run_ends_with_all_that_it_started(deployed: Toy) -> None:
    with worker(deployed) as here:
        run = trigger(deployed, "team", first=None, last="end", overrides=[f"left.sleep={LONG}"])
        wait_until_left_sleeps(deployed)
        prefect(deployed, "flow-run", "cancel", run)
        wait_for(deployed, run, "CANCELLED")
        until = time.monotonic() + 60
        while (left := below(here)) and time.monotonic() < until:
            time.sleep(0.5)
        assert left == []


def below(process: psutil.Process) -> list[str]:
    """The commands under `process`."""
    found: list[str] = []
    for child in process.children(recursive=True):
        with suppress(psutil.Error):
            if child.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(child.cmdline()))
    return found


def test_serve_brings_server_worker_and_deployments_and_ends_them_all(deployed: Toy) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {name: value for name, value in deployed.environment().items() if name != "PREFECT_API_URL"}
    environment["PREFECT_HOME"] = str(deployed.root / ".ratchet/prefect")
    command = [sys.executable, "-m", "ratchet.cli", "serve", "--port", str(port)]
    with subprocess.Popen(command, cwd=deployed.root, env=environment, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT) as serving:  # fmt: skip
        try:
            assert serving.stdout is not None
            said: list[str] = []
            for line in serving.stdout:
                said.append(line)
                if "started!" in line:
                    break
            with urlopen(Request(f"http://127.0.0.1:{port}/api/deployments/count", b"{}", JSON), timeout=30) as answer:
                assert json.load(answer) == 4, said
            started = psutil.Process(serving.pid).children(recursive=True)
            serving.terminate()
            serving.stdout.read()
            assert serving.wait(120) == 130
        finally:
            if serving.poll() is None:
                unplug(psutil.Process(serving.pid))
    assert len(started) >= 2
    assert [process for process in started if process.is_running() and process.status() != psutil.STATUS_ZOMBIE] == []


FETCHES = """
import asyncio
from prefect import flow
from flows import scheduled
from ratchet.core.errors import InfrastructureError

tries = []

def fails_twice(project):
    tries.append(project)
    if len(tries) < 3:
        raise InfrastructureError("git pull", "no network", "wait")
    return "code: abc"

scheduled.fast_forward = fails_twice

@flow
async def fetching():
    return await scheduled.fetch.with_options(retry_delay_seconds=0)("here")

print(asyncio.run(fetching()), len(tries))
"""


def test_fetching_code_is_tried_again_when_the_network_fails(toy: Toy) -> None:
    told = toy.sh(sys.executable, "-c", FETCHES, check=False)
    assert told.stdout.strip().endswith("code: abc 3"), told.stdout + told.stderr
