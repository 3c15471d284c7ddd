"""The wheels that an image installs: what a base's Python needs of the project's dependencies, pinned and hashed.

Asks pip for single pinned files and follows their metadata itself, because pip judges `; python_full_version < …` by
the Python that runs it and the base has another. Refuses to know containers.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import NormalizedName, canonicalize_name, parse_wheel_filename

from ratchet.core import atomic
from ratchet.core.errors import InfrastructureError, InputError
from ratchet.core.fingerprint import file_digest
from ratchet.settings import child_environment

MANYLINUX_1 = {(2, 5): "manylinux1", (2, 12): "manylinux2010", (2, 17): "manylinux2014"}
SOURCE_ONLY = frozenset({canonicalize_name("antlr4-python3-runtime")})
"""Published as source alone. Built here, once, to a wheel; they are plain Python, or it would not fit the base."""

INSTALLER = canonicalize_name("pip")
EPOCH = "315532800"
"""1980-01-01: the earliest time that a wheel can hold."""


class Wheel(NamedTuple):
    """A file of the wheelhouse. `version` as pip wants it, with its local part (2.13.0+cpu)."""

    name: NormalizedName
    version: str
    path: Path


@dataclass(frozen=True)
class Base:
    """The Python that the wheels are for: its environment markers, and the C library of its system."""

    markers: Mapping[str, str]
    glibc: tuple[int, int]

    @classmethod
    def read(cls, answer: str) -> Base:
        """From what `PROBE`, run in the base, printed."""
        found = json.loads(answer)
        major, minor = map(int, found["glibc"].split(".")[:2])
        return cls(found["markers"], (major, minor))

    @property
    def python(self) -> str:
        """Its version in full, 3.11.2."""
        return self.markers["python_full_version"]

    @cached_property
    def platforms(self) -> list[str]:
        """The platform tags it can load, best first."""
        machine, names = self.markers["platform_machine"], list[str]()
        for minor in range(self.glibc[1], 4, -1):
            names.append(f"manylinux_2_{minor}_{machine}")
            if old := MANYLINUX_1.get((2, minor)):
                names.append(f"{old}_{machine}")
        return [*names, f"linux_{machine}"]

    @cached_property
    def ranks(self) -> dict[Tag, int]:
        """Every tag that it accepts, and how good that is; 0 is best."""
        version = tuple(map(int, self.python.split(".")[:2]))
        interpreter = f"cp{version[0]}{version[1]}"
        tags = [
            *cpython_tags(version, platforms=self.platforms),
            *compatible_tags(version, interpreter, self.platforms),
        ]
        return {tag: rank for rank, tag in reversed(list(enumerate(tags)))}


PROBE = """
import json, os, platform, sys
print(json.dumps({"glibc": platform.libc_ver()[1] or "0.0", "markers": {
    "implementation_name": sys.implementation.name, "implementation_version": platform.python_version(),
    "os_name": os.name, "platform_machine": platform.machine(), "platform_release": platform.release(),
    "platform_system": platform.system(), "platform_version": platform.version(), "sys_platform": sys.platform,
    "platform_python_implementation": platform.python_implementation(),
    "python_full_version": platform.python_version(), "python_version": "%d.%d" % sys.version_info[:2]}}))
"""
"""Run by the base's Python: what `Base.read` reads."""


def dependencies(project: Path) -> list[Requirement]:
    """What `pyproject.toml` calls its dependencies, without extras."""
    with (project / "pyproject.toml").open("rb") as file:
        return [Requirement(line) for line in tomllib.load(file)["project"]["dependencies"]]


def read_pins(files: Iterable[Path]) -> dict[NormalizedName, str]:
    """`name==version` lines as a table. Raises InputError for another kind of line."""
    pins: dict[NormalizedName, str] = {}
    for file in files:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            text = line.partition("#")[0].strip()
            name, equal, version = text.partition("==")
            if text and not equal:
                raise InputError(f"{file}:{number}", f"{text!r} is no pin", "write name==version")
            if text:
                pins[canonicalize_name(name)] = version
    return pins


class Store:
    """A folder of wheels that is filled from pip as they are asked for. Raises InfrastructureError when pip fails."""

    def __init__(self, folder: Path, base: Base, pins: Mapping[NormalizedName, str], pip_flags: Sequence[str]) -> None:
        self.folder, self.base, self.pins, self.pip_flags = folder, base, pins, list(pip_flags)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._found: dict[tuple[NormalizedName, str], tuple[int, Wheel]] = {}
        for path in sorted(folder.glob("*.whl")):
            self._note(path)

    def get(self, names: Iterable[NormalizedName]) -> list[Wheel]:
        """The wheel of each name, fetched where it is not here yet. Raises InputError for a name without a pin."""
        names = list(names)
        for name in names:
            if name not in self.pins:
                raise InputError("wheelhouse", f"{name} is pinned nowhere", "add a line to containers/constraints.txt")
        missing = [name for name in names if (name, self.pins[name]) not in self._found]
        self._download([name for name in missing if name not in SOURCE_ONLY])
        for name in missing:
            if name in SOURCE_ONLY:
                self._make(name)
        return [self._found[name, self.pins[name]][1] for name in names]

    def _download(self, names: list[NormalizedName]) -> None:
        if not names:
            return
        which = ["--only-binary=:all:", "--implementation=cp", f"--python-version={self.base.python}"]
        which += [f"--platform={name}" for name in self.base.platforms]
        self._pip("download", *which, "--dest", *self._wanted(names))
        self._require(names)

    def _make(self, name: NormalizedName) -> None:
        """Build the wheel of a package that is published as source, the same bytes each time."""
        pins = self.folder / "build-constraints.txt"
        atomic.write_text(pins, f"setuptools=={self.pins[canonicalize_name('setuptools')]}\n")
        self._pip("wheel", "--wheel-dir", *self._wanted([name]), SOURCE_DATE_EPOCH=EPOCH, PIP_CONSTRAINT=str(pins))
        self._require([name])

    def _wanted(self, names: Iterable[NormalizedName]) -> list[str]:
        return [str(self.folder), *(f"{name}=={self.pins[name]}" for name in names)]

    def _pip(self, verb: str, *arguments: str, **environment: str) -> None:
        command = [sys.executable, "-m", "pip", verb, "--quiet", "--no-deps", *self.pip_flags, *arguments]
        everything = child_environment(**environment)
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=everything)
        if done.returncode:
            said = next((line for line in reversed(done.stderr.splitlines()) if "ERROR" in line), done.stderr[-300:])
            raise InfrastructureError(
                "wheelhouse", f"pip {verb}: {said}", "see the network, the pin, and --pip-flags for an index"
            )

    def _require(self, names: Iterable[NormalizedName]) -> None:
        for path in self.folder.glob("*.whl"):
            self._note(path)
        for name in names:
            if (name, self.pins[name]) not in self._found:
                what = f"pip brought no wheel of {name} {self.pins[name]} that Python {self.base.python} can load"
                raise InputError("wheelhouse", what, "pin a version that has one")

    def _note(self, path: Path) -> None:
        """Keep `path` in mind when it fits the base better than what is known for its pin."""
        name, version, _, tags = parse_wheel_filename(path.name)
        ranks = [self.base.ranks[tag] for tag in tags if tag in self.base.ranks]
        key = name, version.public
        if ranks and (key not in self._found or min(ranks) < self._found[key][0]):
            self._found[key] = min(ranks), Wheel(name, str(version), path)


def closure(roots: Iterable[Requirement], store: Store) -> list[Wheel]:
    """The wheels of `roots` and of all that they need in the store's base, by name."""
    taken: dict[NormalizedName, set[str]] = {}
    wheels: dict[NormalizedName, Wheel] = {}
    wave = [root for root in roots if _holds(root, store.base, {""})]
    while wave:
        names = {canonicalize_name(requirement.name) for requirement in wave}
        wheels |= {wheel.name: wheel for wheel in store.get(sorted(names - wheels.keys()))}
        following = list[Requirement]()
        for requirement in wave:
            name = canonicalize_name(requirement.name)
            new = {"", *requirement.extras} - taken.setdefault(name, set())
            taken[name] |= new
            following += [needed for needed in _needs(wheels[name].path) if new and _holds(needed, store.base, new)]
        wave = following
    return [wheels[name] for name in sorted(wheels)]


def _needs(wheel: Path) -> list[Requirement]:
    """`Requires-Dist` of a wheel."""
    with zipfile.ZipFile(wheel) as file:
        name = next(name for name in file.namelist() if name.endswith(".dist-info/METADATA") and name.count("/") == 1)
        headers = HeaderParser().parsestr(file.read(name).decode("utf-8"))
    return [Requirement(line) for line in headers.get_all("Requires-Dist") or []]


def _holds(requirement: Requirement, base: Base, extras: set[str]) -> bool:
    """Whether it is needed in `base` for one of `extras`; "" is the package without any."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate({**base.markers, "extra": extra}) for extra in extras)


def requirements_text(wheels: Iterable[Wheel]) -> str:
    """A requirements file that pins each wheel to its bytes."""
    return "".join(f"{wheel.name}=={wheel.version} --hash=sha256:{file_digest(wheel.path)}\n" for wheel in wheels)
