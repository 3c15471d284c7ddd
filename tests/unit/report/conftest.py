"""Fixture of the report's tests: a made-up result on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

import made_result


@pytest.fixture
def result(tmp_path: Path) -> Path:
    """A project's folder with a whole made-up result of 120 steps and 60 documents."""
    return made_result.make_result(tmp_path, steps=120, documents=60)
