"""One Prefect server for the session's flows, and a fresh toy project for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from prefect_server import prefect_server
from toy_project import Toy


@pytest.fixture(scope="session")
def prefect_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the session's Prefect database."""
    return tmp_path_factory.mktemp("prefect")


@pytest.fixture(scope="session")
def prefect_api(prefect_home: Path) -> Iterator[str]:
    """The address of the session's Prefect server."""
    with prefect_server(prefect_home) as address:
        yield address


@pytest.fixture
def toy(tmp_path: Path, prefect_home: Path, prefect_api: str) -> Toy:
    """A fresh toy project in a folder with a space and letters outside ASCII."""
    return Toy(tmp_path / "с пробелом ü", prefect_home, prefect_api)
