"""A folder for a job, with a blank and a letter beyond ASCII in its path."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "ein Ordner ü" / "work"
    path.mkdir(parents=True)
    return path
