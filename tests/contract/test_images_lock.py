"""The wheels that containers/images.lock records are those that the two files of pins name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from packaging.utils import parse_wheel_filename

from wheelhouse import read_pins

CONTAINERS = Path(__file__).resolve().parents[2] / "containers"
RECORDED = json.loads((CONTAINERS / "images.lock").read_text(encoding="utf-8"))


@pytest.mark.parametrize("image", RECORDED)
def test_images_lock_records_wheels_of_the_pinned_versions(image: str) -> None:
    pins = read_pins([CONTAINERS.parent / "constraints.txt", CONTAINERS / "constraints.txt"])
    wheels = [parse_wheel_filename(name) for name in RECORDED[image]["inputs"]["wheels"]]
    assert len(wheels) > 100
    other = {name: str(version) for name, version, _, _ in wheels if version.public != pins.get(name)}
    assert not other, "build again: python containers/build.py"
