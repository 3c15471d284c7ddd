"""A session whose experiments run on three machines, one of which dies, behind a cut network: the same table."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from power import unplug
from toy_pool import SCRIPT, SIZE, Cable, box, deploy, environment, make_pool_project, wait_until
from toy_session import Scripted, read_metrics, rows, session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

LOST_S, CUT_S = 8.0, 5.0
SECONDS = {"one": 1.0, "slow": 5.0, "dies": 60.0}
"""What an experiment takes on each machine."""


def test_session_on_three_machines_ends_as_on_one_whatever_happens_to_them(
    tmp_path: Path, prefect_api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, remote = make_pool_project(tmp_path / "mit ä und Leerzeichen")
    one = Path(shutil.copytree(project, tmp_path / "one machine"))
    with monkeypatch.context() as there:
        there.chdir(one)  # a training is named by the constraints.txt that it finds, too
        session(one, Scripted(SCRIPT), where=tmp_path / "alone", **SIZE)
    cable, here = Cable(prefect_api), environment(tmp_path / "home", prefect_api)
    deploy(project, here)
    with ExitStack() as boxes, (tmp_path / "session.log").open("w") as log:
        workers = {
            name: boxes.enter_context(box(project, tmp_path / f"box {name}", cable.address, seconds))
            for name, seconds in SECONDS.items()
        }
        command = [sys.executable, "-m", "toy_pool", str(project), str(tmp_path / "pool"), str(LOST_S)]
        going = subprocess.Popen(command, cwd=project, env=here, stdout=log, stderr=log)
        try:
            wait_until(lambda: any((tmp_path / "box dies/runs").glob("experiments/*/*")), 120)
            unplug(workers["dies"])
            wait_until(lambda: any(remote.glob("experiments/*/*/result*.tar")), 60)
            cable.cut()
            time.sleep(CUT_S)
            cable.join()
            assert going.wait(240) == 0, (tmp_path / "session.log").read_text()
        finally:
            going.kill()
            going.wait()
    assert rows(tmp_path / "pool") == rows(tmp_path / "alone")
    assert read_metrics(tmp_path / "pool") == read_metrics(tmp_path / "alone")
    did = {name: {path.parent.name for path in (tmp_path / f"box {name}/runs").glob("experiments/*/*/result-*.json")}
           for name in SECONDS}  # fmt: skip
    assert did["slow"], "the slow one did its share"
    assert not did["dies"], "and the dead one none"
