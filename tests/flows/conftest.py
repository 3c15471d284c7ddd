"""One Prefect home for the session's flows, and a fresh toy project for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from toy_project import Toy


@pytest.fixture(scope="session")
def prefect_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Prefect database shared by the session's flows: making one costs six seconds."""
    return tmp_path_factory.mktemp("prefect")


@pytest.fixture
def toy(tmp_path: Path, prefect_home: Path) -> Toy:
    """A fresh toy project in a folder with a space and letters outside ASCII."""
    return Toy(tmp_path / "с пробелом ü", prefect_home)
