"""Nothing is skipped in silence: a skip whose reason this machine could meet fails the whole run."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable

import pytest


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _has_browser() -> bool:
    return any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome")))


MAY_LACK: dict[str, Callable[[], bool]] = {
    r"needs a CUDA device": _has_cuda,
    r"needs a browser": _has_browser,
    r"does not let a process mount": lambda: False,  # the test itself has just tried
}
"""The only reasons to skip, each with what says that this machine has it after all."""

_skipped: list[tuple[str, str]] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember each skip and its reason."""
    if report.skipped and isinstance(report.longrepr, tuple):
        _skipped.append((report.nodeid, str(report.longrepr[2]).removeprefix("Skipped: ")))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Whole modules can be skipped too."""
    if report.skipped and isinstance(report.longrepr, tuple):
        _skipped.append((report.nodeid, str(report.longrepr[2]).removeprefix("Skipped: ")))


def wrong_skips(skipped: list[tuple[str, str]], may_lack: dict[str, Callable[[], bool]]) -> list[str]:
    """The skips whose reason is not on the list, or is not true of this machine."""
    found: list[str] = []
    for test, reason in skipped:
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
