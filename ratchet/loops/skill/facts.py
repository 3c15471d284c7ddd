"""Exact-answer facts from installed packages: symbols of elements, capitals of countries of a million people or more.

The text of the packages never enters the repository; a manifest in skills/ pins the hash of what they must give, since
DVC sees no package. Knows the packages; refuses to know splits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from ratchet.core.errors import InputError
from ratchet.core.fingerprint import digest
from ratchet.data import countries
from ratchet.data.countries import INSTALL

PACKAGES = {"elements": "periodictable", "capitals": countries.PACKAGE}


def tasks(name: str) -> list[dict[str, Any]]:
    """The tasks of `elements` or `capitals`, sorted by id. Raises InputError when the package is not installed."""
    makers: dict[str, Callable[[], list[dict[str, Any]]]] = {"elements": _elements, "capitals": _capitals}
    return sorted(makers[name](), key=lambda task: task["id"])


def _elements() -> list[dict[str, Any]]:
    try:
        from periodictable import elements
    except ImportError:
        raise InputError("elements tasks", "package periodictable is not installed", INSTALL) from None
    return [
        {"id": f"element-{each.number:03d}", "question": f"What is the chemical symbol of {each.name}?",
         "answers": [each.symbol]}
        for each in elements if each.number > 0
    ]  # fmt: skip


def _capitals() -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for country in countries.large_countries("capitals tasks"):
        if code := country.get("ISO", {}).get("alpha3"):
            question = f"What is the capital of {country['name']}?"
            found[code] = {"id": f"capital-{code.lower()}", "question": question, "answers": [country["capital"]]}
    return list(found.values())


def manifest(name: str, values: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What skills/<name>.json holds."""
    package = PACKAGES[name]
    return {
        "tasks": len(values),
        "package": package,
        "version": metadata.version(package),
        "sha256": digest(list(values)),
    }


def check_manifest(name: str, values: Sequence[dict[str, Any]], folder: Path) -> None:
    """Raises InputError when the package gives other tasks than the manifest in `folder` pins, or none is there."""
    path = folder / f"{name}.json"
    if not path.is_file():
        raise InputError(path, "no manifest of these tasks", f"write it: `python -m ratchet.loops.skill.facts {name}`")
    pinned = json.loads(path.read_text(encoding="utf-8"))
    now = manifest(name, values)
    if pinned["sha256"] != now["sha256"]:
        what = f"{now['package']} {now['version']} gives other tasks than {pinned['package']} {pinned['version']} did"
        raise InputError(path, what, f"install the pinned version, or `python -m ratchet.loops.skill.facts {name}`")


if __name__ == "__main__":
    import sys

    from ratchet.core import atomic

    for each in sys.argv[1:] or PACKAGES:
        atomic.write_json(Path("skills") / f"{each}.json", manifest(each, tasks(each)))
