"""A real engine, the images that tests run in, and what may be left of either when all is over: nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import docker
import pytest
from docker.errors import DockerException
from requests.exceptions import RequestException

import build
from image_orders import order_of
from ratchet.sandbox.container import OWNER_LABEL
from ratchet.sandbox.owners import Owner
from stage_runs import Pipeline, pipeline, toy_project

ROOT = Path(__file__).resolve().parents[2]
IN_CONTAINER = re.compile(r"docker[/-]([0-9a-f]{64})")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test that needs an image may have to build it: minutes, where .ci/run has not."""
    for item in items:
        if "cpu_image" in getattr(item, "fixturenames", ()) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def engine() -> Iterator[docker.DockerClient]:
    """The engine that DOCKER_HOST or the default socket names."""
    try:
        client = docker.from_env(timeout=300)
        client.ping()
    except (DockerException, RequestException):
        pytest.skip("needs a Docker engine")
    yield client
    client.close()


@pytest.fixture(scope="session")
def base_image(engine: docker.DockerClient) -> str:
    """An image with a Python and nothing else: made here where packages are all that can be had, else pulled."""
    if shutil.which("debootstrap") and os.geteuid() == 0:
        subprocess.run([ROOT / "containers/base_image.sh"], check=True, timeout=600)
        return "ratchet-debian:bookworm"
    name = "python:3.11-slim-bookworm"
    if not engine.images.list(name):
        engine.images.pull(name)
    return name


@pytest.fixture(scope="session")
def cpu_image(base_image: str) -> str:
    """The CPU image of this checkout, built unless it is there."""
    order = order_of("cpu", base_image)
    build.build(order)
    return order.name


@pytest.fixture(scope="session")
def both_ways(cpu_image: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pipeline]:
    """The smoke pipeline as processes and in containers, at the same time: most of it is the start of one process."""
    places = {
        where: toy_project(tmp_path_factory.mktemp(where) / "ein Projekt ü") for where in ("process", "container")
    }
    with ThreadPoolExecutor() as pool:
        running = {where: pool.submit(pipeline, place, cpu_image, where) for where, place in places.items()}
        return {where: future.result() for where, future in running.items()}


@pytest.fixture(scope="session")
def here(both_ways: dict[str, Pipeline]) -> Pipeline:
    """The pipeline whose stages ran as processes. Tests leave it as it is."""
    return both_ways["process"]


@pytest.fixture(scope="session")
def there(both_ways: dict[str, Pipeline]) -> Pipeline:
    """The pipeline whose stages ran in containers. Tests leave it as it is."""
    return both_ways["container"]


@pytest.fixture(scope="session", autouse=True)
def leftovers() -> Iterator[None]:
    """Fail when the tests leave a container, a volume or a process in a container behind."""
    try:
        client = docker.from_env()
        client.ping()
    except (DockerException, RequestException):
        yield
        return
    volumes, processes = _volumes(client), _processes(client)
    yield
    assert _containers(client) == []
    assert _volumes(client) <= volumes
    assert _processes(client) <= processes


def _containers(client: docker.DockerClient) -> list[str]:
    """Those of this process, of a process that is gone, and those in which an image was listed."""
    found = client.containers.list(all=True, filters={"label": OWNER_LABEL}, ignore_removed=True)
    owners = {container.name: Owner.read(container.labels[OWNER_LABEL]) for container in found}
    listings = client.containers.list(all=True, filters={"label": "ratchet.listing"}, ignore_removed=True)
    mine = [name for name, owner in owners.items() if owner and (owner == Owner.me() or owner.is_gone())]
    return sorted([*mine, *(container.name for container in listings)])


def _volumes(client: docker.DockerClient) -> set[str]:
    return {volume.name for volume in client.volumes.list()}


def _processes(client: docker.DockerClient) -> set[str]:
    """Processes of this machine in a container that the engine does not know."""
    known = {container.id for container in client.containers.list(all=True, ignore_removed=True)}
    found: set[str] = set()
    for file in Path("/proc").glob("[0-9]*/cgroup"):
        try:
            container = IN_CONTAINER.search(file.read_text())
        except (FileNotFoundError, ProcessLookupError):
            continue
        if container and container[1] not in known:
            found.add(file.parent.name)
    return found
