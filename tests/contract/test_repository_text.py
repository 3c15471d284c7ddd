"""What must stand in no tracked file: where packages come from, a place on somebody's machine, a gap in the README."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

HOSTS = [  # in pieces, so that this file does not name them either
    ".".join(parts)
    for parts in (
        ("pytorch", "org"),
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("anaconda", "org"),
        ("conda", "anaconda"),
        ("npmjs", "org"),
        ("npmjs", "com"),
        ("yarnpkg", "com"),
        ("jsdelivr", "net"),
        ("unpkg", "com"),
        ("cloudflare", "com"),
        ("docker", "io"),
        ("docker", "com"),
        ("ghcr", "io"),
        ("gcr", "io"),
        ("quay", "io"),
        ("pkg", "dev"),
        ("mcr", "microsoft", "com"),
        ("public", "ecr", "aws"),
        ("crates", "io"),
        ("golang", "org"),
        ("rubygems", "org"),
        ("debian", "org"),
        ("ubuntu", "com"),
        ("ngc", "nvidia", "com"),
        ("nvcr", "io"),
    )
]
HOST = re.compile(r"(?<![\w])(?:[\w-]+\.)*(?:" + "|".join(map(re.escape, HOSTS)) + r")(?![\w-])", re.IGNORECASE)
PLACE = re.compile(r"(?<![\w.}{~*$/-])/(?:work|root|Users)/[\w.-]|(?<![\w.}{~*$/-])/home/[a-z][\w-]*")
PLACEHOLDER = re.compile(r"\b[A-Z]+_(?:SENTENCE|TABLE|MB)\b")


@cache
def tracked() -> dict[str, str]:
    """The text of every file in git's index that is text, as it lies in the working tree."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    texts = {}
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if path.is_file() and b"\0" not in (content := path.read_bytes()):
            texts[name] = content.decode("utf-8", errors="replace")
    assert texts
    return texts


def found(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{name}:{number}: {match.group()}"
        for name, text in tracked().items()
        for number, line in enumerate(text.splitlines(), start=1)
        for match in pattern.finditer(line)
    ]


def test_no_tracked_file_names_where_packages_come_from() -> None:
    assert not found(HOST)


def test_no_tracked_file_names_a_place_on_a_machine() -> None:
    assert not found(PLACE)


def test_readme_has_no_gap_left_to_fill() -> None:
    assert not PLACEHOLDER.findall((ROOT / "README.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("host", HOSTS)
def test_host_pattern_sees_addresses_images_and_nothing_longer(host: str) -> None:
    assert HOST.search(f"--index-url https://files.{host}/simple")
    assert HOST.search(f"FROM {host}/library/python:3.11")
    assert not HOST.search(f"my{host}x")


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("cd /" + "work/main", True),
        ("'/" + "root/.cache'", True),
        ("/" + "home/ada", True),
        ("docs/work/x and framework/root/x", False),
        ("{tmp_path}/work/x", False),
        ("~/home/x", False),
        ("/home/", False),
    ],
)
def test_place_pattern_sees_absolute_paths_alone(text: str, seen: bool) -> None:
    assert bool(PLACE.search(text)) == seen
