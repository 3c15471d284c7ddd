"""Facts on countries from an installed package; its text never enters the repository.

Knows the package; refuses to know what is asked about a country.
"""

from __future__ import annotations

import json
from importlib import metadata, resources
from typing import Any

from ratchet.core.errors import InputError

PACKAGE = "countryinfo"
INSTALL = "pip install -c constraints.txt -e '.[skill]'"
MANY = 1_000_000
"""People of a country that is asked for: of islets and bases a small model knows nothing."""


def large_countries(where: str) -> list[dict[str, Any]]:
    """Countries of a million people or more that have a capital, as the package has them, by the name of their file.

    Raises InputError, as from `where`, when the package is not installed.
    """
    try:
        metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        raise InputError(where, f"package {PACKAGE} is not installed", INSTALL) from None
    files = [each for each in resources.files(PACKAGE).joinpath("data").iterdir() if each.name.endswith(".json")]
    found = [json.loads(each.read_text(encoding="utf-8")) for each in sorted(files, key=lambda each: each.name)]
    return [each for each in found if each.get("capital") and (each.get("population") or 0) >= MANY]
