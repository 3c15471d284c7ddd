"""Build an image from a base and a wheelhouse, without a network, and record what went in and what came out.

    python containers/build.py [cpu|train|store] [--base IMAGE] [--tag TAG] [--pip-flags=FLAGS] [--locked] [--rebuild]

Three steps: ask the base which Python it has; gather the pinned wheels for that Python (containers/wheelhouse.py; the
only step with a network, none when the wheels are there); build with the network off. An image whose inputs have not
changed is left alone. Refuses to know what the image runs: Ratchet's own code is mounted when a container starts, so a
change of code builds nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError, BuildError, ContainerError, DockerException, ImageNotFound
from docker.models.images import Image
from filelock import FileLock
from packaging.requirements import Requirement
from requests.exceptions import RequestException

from contents import contents
from ratchet.core import atomic
from ratchet.core.errors import InfrastructureError, InputError
from ratchet.core.fingerprint import digest, file_digest
from ratchet.core.provenance import collect
from ratchet.stage import guarded
from wheelhouse import INSTALLER, PROBE, Base, Store, Wheel, closure, dependencies, read_pins, requirements_text

HERE = Path(__file__).resolve().parent
CACHE = Path.home() / ".cache/ratchet/containers"
LOCK = HERE / "images.lock"
OLDEST = (3, 11)
INPUTS, REVISION, CONSTRAINTS = "ratchet.inputs", "org.opencontainers.image.revision", "ratchet.constraints"
COLOUR = re.compile(r"\x1b\[[\d;]*m")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Recipe:
    """One kind of image. `roots`: what it installs; None = the project's dependencies."""

    dockerfile: str
    tag: str
    roots: tuple[str, ...] | None = None


RECIPES = {
    "cpu": Recipe("cpu.Dockerfile", "ratchet-cpu:local"),
    "train": Recipe("train.Dockerfile", "ratchet-train:local"),
    "store": Recipe("cpu.Dockerfile", "ratchet-store:local", ("moto[s3]", "flask", "flask-cors")),
}


@dataclass(frozen=True, kw_only=True)
class Order:
    """What to build, from what, and where to keep it. `base` None = what the Dockerfile names."""

    recipe: Recipe
    project: Path = HERE.parent
    base: str | None = None
    tag: str | None = None
    packages: str = "python3"
    pip_flags: Sequence[str] = ()
    cache: Path = CACHE
    lock: Path = LOCK
    locked: bool = False
    rebuild: bool = False
    say: Say = field(default=partial(print, file=sys.stderr, flush=True))

    @property
    def name(self) -> str:
        """The image's tag."""
        return self.tag or self.recipe.tag

    @property
    def dockerfile(self) -> Path:
        """The recipe's Dockerfile."""
        return HERE / self.recipe.dockerfile


def build(order: Order) -> Image:
    """The image of `order`: the one that is there when nothing has changed, else a new one.

    Raises InputError when a pin is missing, the base is too old or, with `locked`, other wheels came than are recorded;
    InfrastructureError when engine or network fail.
    """
    order.cache.mkdir(parents=True, exist_ok=True)
    with _engine_errors(), FileLock(order.cache / "build.lock"):
        client = docker.from_env(timeout=600)
        base_name, base_image = _base_image(client, order)
        base = _probe(client, base_image)
        order.say(f"{order.name}: on {base_name} with Python {base.python}")
        pins = read_pins([order.project / "constraints.txt", HERE / "constraints.txt"])
        flavour = digest(list(order.pip_flags))[:12]  # an index may give another build of the same version
        store = Store(order.cache / f"wheels-{flavour}", base, pins, order.pip_flags)
        wheels = closure(_roots(order), store)
        inputs = _inputs(order, base_name, base_image, base, wheels, store.get([INSTALLER]))
        if order.locked:
            _require_locked(order, inputs)
        image = _existing(client, order, digest(inputs))
        if image is None or order.rebuild:
            image = _build(client, order, base_image, wheels, store.get([INSTALLER])[0], inputs)
        _record(client, order, image, inputs)
        return image


def _roots(order: Order) -> list[Requirement]:
    return dependencies(order.project) if order.recipe.roots is None else list(map(Requirement, order.recipe.roots))


def _base_image(client: docker.DockerClient, order: Order) -> tuple[str, Image]:
    """The base, pulled when it is not here, and with a Python added when it has none."""
    name = order.base or _default_base(order.dockerfile)
    try:
        image = client.images.get(name)
    except ImageNotFound:
        order.say(f"{order.name}: pulling {name}")
        try:
            image = client.images.pull(name)
        except APIError as error:
            what = f"the base {name} is not on this engine and cannot be pulled: {error.explanation}"
            do = "name another with --base, or make one: `containers/base_image.sh`"
            raise InfrastructureError(order.name, what, do) from None
    if order.packages == "python3" and _run(client, image, ["sh", "-c", "command -v python3 || true"]):
        return name, image
    tag = f"ratchet-python:{digest([image.id, order.packages])[:12]}"
    order.say(f"{order.name}: {tag} is {name} and the packages {order.packages}")
    image, _ = client.images.build(
        path=str(HERE),
        dockerfile="python.Dockerfile",
        tag=tag,
        buildargs={"BASE_IMAGE": str(image.id), "PACKAGES": order.packages},
        forcerm=True,
    )
    return f"{name} + {order.packages}", image


def _default_base(dockerfile: Path) -> str:
    lines = dockerfile.read_text(encoding="utf-8").splitlines()
    return next(line.partition("=")[2] for line in lines if line.startswith("ARG BASE_IMAGE="))


def _probe(client: docker.DockerClient, image: Image) -> Base:
    base = Base.read(_run(client, image, ["python3", "-c", PROBE]))
    if tuple(map(int, base.python.split(".")[:2])) < OLDEST:
        raise InputError("base image", f"its Python is {base.python}", "take one with Python 3.11 or newer")
    if base.glibc < (2, 17):
        raise InputError("base image", "no wheel fits its C library", "take one with glibc, such as Debian or Ubuntu")
    return base


def _run(client: docker.DockerClient, image: Image, command: list[str]) -> str:
    """What `command` prints in a container of `image` without network."""
    return client.containers.run(image, command, entrypoint="", remove=True, network_mode="none").decode()


def _inputs(
    order: Order, base_name: str, base_image: Image, base: Base, wheels: list[Wheel], installer: list[Wheel]
) -> dict[str, Any]:
    """All that decides which files the image holds."""
    return {
        "base": {"name": base_name, "image": base_image.id, "python": base.python},
        "dockerfile": file_digest(order.dockerfile),
        "install": file_digest(HERE / "install.sh"),
        "wheels": {wheel.path.name: file_digest(wheel.path) for wheel in [*installer, *wheels]},
    }


def _require_locked(order: Order, inputs: Mapping[str, Any]) -> None:
    """Raise InputError unless the wheels are those that the lock file records."""
    recorded = _read_lock(order.lock).get(order.name, {}).get("inputs", {}).get("wheels", {})
    differing = sorted({name for name, _ in inputs["wheels"].items() ^ recorded.items()})
    if differing:
        named = ", ".join(differing[:3]) + (f" and {len(differing) - 3} more" if len(differing) > 3 else "")
        do = "restore constraints.txt, or build without --locked and commit the new lock"
        raise InputError(order.name, f"its wheels are not those in {order.lock.name}: {named}", do)


def _existing(client: docker.DockerClient, order: Order, inputs: str) -> Image | None:
    try:
        image = client.images.get(order.name)
    except ImageNotFound:
        return None
    return image if image.labels.get(INPUTS) == inputs else None


def _build(
    client: docker.DockerClient, order: Order, base: Image, wheels: list[Wheel], installer: Wheel, inputs: object
) -> Image:
    revision = collect(order.project)["commit"] or "none"
    constraints = file_digest(order.project / "constraints.txt")
    with tempfile.TemporaryDirectory(dir=order.cache, prefix="context-") as folder:
        context = Path(folder)
        _lay_out(context, order, wheels, installer)
        megabytes = sum(wheel.path.stat().st_size for wheel in wheels) / 1e6
        order.say(f"{order.name}: installing {len(wheels)} wheels ({megabytes:.0f} MB) without a network")
        try:
            image, _ = client.images.build(
                path=folder,
                tag=order.name,
                buildargs={"BASE_IMAGE": str(base.id)},
                labels={INPUTS: digest(inputs), REVISION: revision, CONSTRAINTS: constraints},
                network_mode="none",
                nocache=order.rebuild,
                forcerm=True,
            )
        except BuildError as error:
            said = [line.get("stream", "") for line in error.build_log if isinstance(line, dict)]
            text = next((COLOUR.sub("", line).strip() for line in said if "ERROR" in line), error.msg)
            raise InputError(order.name, f"the build stopped: {text}", "see the pins and the Dockerfile") from None
    client.images.prune(filters={"dangling": True, "label": "ratchet.stage=install"})
    return image


def _lay_out(context: Path, order: Order, wheels: list[Wheel], installer: Wheel) -> None:
    """The build context: hard links where the file system lets them."""
    shutil.copyfile(order.dockerfile, context / "Dockerfile")
    shutil.copyfile(HERE / "install.sh", context / "install.sh")
    for folder, files in (("wheels", wheels), ("installer", [installer])):
        (context / folder).mkdir()
        for wheel in files:
            _link(wheel.path, context / folder / wheel.path.name)
    (context / "wheels/requirements.txt").write_text(requirements_text(wheels), encoding="utf-8")


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _record(client: docker.DockerClient, order: Order, image: Image, inputs: Mapping[str, Any]) -> None:
    """Write the image into the lock file, unless it stands there."""
    recorded = _read_lock(order.lock)
    if recorded.get(order.name, {}).get("image") == image.id:
        order.say(f"{order.name}: nothing to do, {str(image.id)[:19]} has these inputs")
        return
    found = contents(client, image)
    recorded[order.name] = {
        "image": image.id,
        "commit": image.labels[REVISION],
        "constraints": image.labels[CONSTRAINTS],
        "inputs": inputs,
        "files": found.files,
        "files_sha256": found.sha256,
        "megabytes": found.megabytes,
    }
    atomic.write_json(order.lock, dict(sorted(recorded.items())))
    order.say(
        f"{order.name}: {str(image.id)[:19]}, {found.files:,} files, {found.megabytes:,} MB, in {order.lock.name}"
    )


def _read_lock(lock: Path) -> dict[str, Any]:
    return json.loads(lock.read_text(encoding="utf-8")) if lock.exists() else {}


@contextmanager
def _engine_errors() -> Iterator[None]:
    """The engine's errors as one line."""
    try:
        yield
    except ContainerError as error:
        said = str(error).strip()[-200:]
        raise InputError("base image", f"its Python does not run: {said}", "take another base") from None
    except (DockerException, RequestException, ConnectionError) as error:
        said = " ".join(str(error).split())[:300]
        raise InfrastructureError("containers", f"no image: {said}", "is a Docker engine running?") from None


def _arguments() -> Order:
    parser = argparse.ArgumentParser(description="Build an image without a network, and record it.")
    parser.add_argument("image", nargs="?", choices=sorted(RECIPES), default="cpu")
    parser.add_argument("--base", help="base image; needs Python 3.11+, or apt to get it")
    parser.add_argument("--tag", help="what the image is called")
    parser.add_argument("--packages", default="python3", help="Debian packages that the base gets (needs a network)")
    parser.add_argument("--pip-flags", default="", help="for fetching wheels, e.g. an index with torch for the CPU")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where wheels are kept")
    parser.add_argument("--lock", type=Path, default=LOCK, help="where the image is recorded")
    parser.add_argument("--locked", action="store_true", help="refuse other wheels than the recorded ones")
    parser.add_argument("--rebuild", action="store_true", help="build even when nothing has changed")
    given = vars(parser.parse_args())
    given["pip_flags"] = shlex.split(given["pip_flags"])
    return Order(recipe=RECIPES[given.pop("image")], **given)


if __name__ == "__main__":
    sys.exit(guarded("containers", lambda: print(build(_arguments()).id)))
