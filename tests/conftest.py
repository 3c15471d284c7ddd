"""What holds for every test: nothing is skipped in silence, one torch thread, its folder, and who may run beside whom.

A skip whose reason this machine could meet fails the whole run. `make test` runs two workers (pytest-xdist): a file's
tests stay together and share its fixtures, and what needs something that exists once stays on one worker.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("RATCHET_THREADS", "1")  # two workers, two cores: a second thread each would only wait
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RATCHET_SANDBOX", "process")  # the same on every machine; tests/containers has the other

ALONE: dict[str, tuple[str, ...]] = {
    "prefect": ("tests/flows/",),  # fresh servers that start at once wait for each other
    "docker": ("tests/containers/",),  # one engine, images that are built once
    "browser": ("tests/browser/",),  # one Chromium for all pages
}
"""What exists once, and the tests that need it: they run in turn, on one worker. `xdist_group` adds a single test."""

LONG = (*(path for paths in ALONE.values() for path in paths), "tests/resume/", "tests/faults/", "tests/unit/train/")
"""What takes longest and starts first, lest one worker end with it while the other has nothing left."""


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _in_ci() -> bool:
    """Where .ci/run brings a browser, an engine and Compose: what is missing there is a fault."""
    return os.environ.get("CI") == "true"


def _has_browser() -> bool:
    return _in_ci() or any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome")))


def _has_engine() -> bool:
    """Anywhere but in CI one that answers."""
    if _in_ci():
        return True
    docker = shutil.which("docker")
    return docker is not None and subprocess.run([docker, "info"], capture_output=True, timeout=60).returncode == 0


def _has_roots_engine() -> bool:
    return os.geteuid() == 0 and (_in_ci() or shutil.which("dockerd") is not None)


def _may_unshare() -> bool:
    """The test itself has just tried in vain; but where root starts an engine, it may mount and leave the network."""
    return _in_ci() and os.geteuid() == 0


MAY_LACK: dict[str, Callable[[], bool]] = {
    r"needs a CUDA device": _has_cuda,
    r"needs a machine without CUDA": lambda: not _has_cuda(),
    r"needs a browser": _has_browser,
    r"needs a Docker engine": _has_engine,
    r"needs Docker Compose": _in_ci,  # anywhere else the test has just looked
    r"needs root and dockerd": _has_roots_engine,
    r"does not let a process (mount|leave the network)": _may_unshare,
    r"needs a path without blanks": lambda: not re.search(r"\s", sys.prefix),
}
"""The only reasons to skip, each with what says that this machine has it after all."""

_skipped: list[tuple[str, str]] = []


def group_of(test: str, alone: dict[str, tuple[str, ...]] = ALONE) -> str:
    """The tests that go to one worker together with `test` (its id): those of what it needs, else those of its file."""
    path = test.partition("::")[0]
    return next((name for name, paths in alone.items() if path.startswith(paths)), path)


def long_first(tests: Iterable[str]) -> list[str]:
    """Test ids in the order they are handed out: the long ones first, and otherwise as they came."""
    return sorted(tests, key=lambda test: next((n for n, path in enumerate(LONG) if test.startswith(path)), len(LONG)))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long tests first."""
    by_id = {item.nodeid: item for item in items}
    items[:] = [by_id[test] for test in long_first(by_id)]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out groups of tests: marks first, then `group_of`."""
    from xdist.scheduler.loadgroup import LoadGroupScheduling

    class Groups(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            marked = super()._split_scope(nodeid)
            return marked if marked != nodeid else group_of(nodeid)

    return Groups(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Fail the test that leaves another working directory than it found, not the one that stumbles over it later."""
    yield
    home = item.config.invocation_params.dir
    try:
        here = Path.cwd()
    except FileNotFoundError:
        here = None
    if here != home:
        os.chdir(home)
        raise AssertionError(f"{item.nodeid} leaves the working directory at {here or 'a folder that is gone'}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember each skip and its reason; with workers, those they report."""
    if report.skipped and isinstance(report.longrepr, tuple):
        _skipped.append((report.nodeid, str(report.longrepr[2]).removeprefix("Skipped: ")))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Whole modules can be skipped too."""
    if report.skipped and isinstance(report.longrepr, tuple):
        _skipped.append((report.nodeid, str(report.longrepr[2]).removeprefix("Skipped: ")))


def wrong_skips(skipped: list[tuple[str, str]], may_lack: dict[str, Callable[[], bool]]) -> list[str]:
    """The skips whose reason is not on the list, or is not true of this machine."""
    found: list[str] = []
    for test, reason in dict.fromkeys(skipped):  # every worker tells of a module that skips itself
        has = next((has for pattern, has in may_lack.items() if re.search(pattern, reason)), None)
        if has is None:
            found.append(f"{test}: skipped for {reason!r}, which is not on the list in tests/conftest.py")
        elif has():
            found.append(f"{test}: skipped for {reason!r}, which this machine has")
    return found


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run when something was skipped that could have run."""
    if wrong_skips(_skipped, MAY_LACK):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which skips failed the run."""
    for line in wrong_skips(_skipped, MAY_LACK):
        terminalreporter.write_line(f"SKIPPED WRONGLY {line}", red=True)
