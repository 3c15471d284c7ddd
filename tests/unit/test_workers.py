"""The arrangement of tests/conftest.py for two workers: who stays together, and what starts first."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"

OVERLAPPING = """
import os, time
from pathlib import Path
import pytest

TRACE = Path(__file__).parents[2] / "trace"

@pytest.mark.parametrize("number", range(3))
def test_of_a_file(number):
    with TRACE.open("a") as trace:
        trace.write(f"{Path(__file__).name} {os.environ['PYTEST_XDIST_WORKER']}\\n")
    time.sleep(0.2)
"""


@pytest.fixture(scope="module")
def arrangement() -> dict[str, object]:
    names: dict[str, object] = {}
    exec(compile(CONFTEST.read_text(), str(CONFTEST), "exec"), names)
    return names


@pytest.mark.parametrize(
    ("test", "group"),
    [
        ("tests/flows/test_pipeline_flow.py::test_a", "prefect"),
        ("tests/containers/test_build.py::test_a[x/y]", "docker"),
        ("tests/unit/test_dag.py::test_a[tests/flows/]", "tests/unit/test_dag.py"),
    ],
)
def test_group_is_what_a_test_needs_alone_or_its_file(arrangement, test: str, group: str) -> None:
    assert arrangement["group_of"](test) == group


def test_long_tests_start_first_and_the_rest_keep_their_order(arrangement) -> None:
    tests = ["tests/unit/b.py::z", "tests/unit/a.py::y", "tests/resume/c.py::x", "tests/flows/d.py::w"]
    assert arrangement["long_first"](tests) == [tests[3], tests[2], tests[0], tests[1]]


def test_what_must_be_alone_names_tests_that_are_there(arrangement) -> None:
    root = CONFTEST.parents[1]
    assert [path for path in arrangement["LONG"] if not (root / path).exists()] == []  # type: ignore[union-attr]


@pytest.mark.slow
def test_workers_keep_a_group_together_and_share_the_files(tmp_path: Path) -> None:
    shutil.copy(CONFTEST, tmp_path / "conftest.py")
    for name in ("flows/test_one", "flows/test_two", "unit/test_three"):
        path = tmp_path / "tests" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(OVERLAPPING)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    command += ["-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder", "."]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout
    trace = [tuple(line.split()) for line in (tmp_path / "trace").read_text().splitlines()]
    assert len(trace) == 9
    workers = dict(trace)
    assert set(trace) == set(workers.items()), "a file's tests ran on two workers"
    assert workers["test_one.py"] == workers["test_two.py"] != workers["test_three.py"]
