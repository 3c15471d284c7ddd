"""The local stack: a valid file, everything on localhost without privileges; really started, and asked."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
import yaml

import build
from image_orders import order_of

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "containers/compose.yaml"
PROJECT = "ratchet-test-stack"


def test_compose_file_follows_the_specification() -> None:
    checker = [Path(sys.executable).parent / "check-jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*checker, FILE], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_compose_services_stay_on_localhost_without_privileges_socket_or_telemetry() -> None:
    services = yaml.safe_load(FILE.read_text())["services"]
    assert set(services) == {"server", "worker", "store"}
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert "docker.sock" not in str(service)
    for name in ("server", "worker"):
        assert services[name]["environment"]["DO_NOT_TRACK"] == "1"
        assert services[name]["environment"]["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"


def compose_command() -> list[str]:
    """Compose as the engine's plugin, or the program of its own that Debian has."""
    plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    if plugin.returncode == 0:
        return ["docker", "compose"]
    if program := shutil.which("docker-compose"):
        return [program]
    pytest.skip("needs Docker Compose")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def ask(url: str, body: dict[str, Any] | None = None, *, method: str | None = None, seconds: float = 90) -> str:
    """What `url` answers, as soon as it does."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    deadline = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.read().decode()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


@pytest.fixture(scope="module")
def stack(engine: docker.DockerClient, cpu_image: str, base_image: str) -> Iterator[dict[str, str]]:
    """The stack, up; its variables. Afterwards nothing of it is left."""
    compose = compose_command()
    build.build(order_of("store", base_image))
    ports = {"STACK_SERVER_PORT": str(free_port()), "STACK_STORE_PORT": str(free_port())}
    variables = {**ports, "STACK_IMAGE": cpu_image, "STACK_USER": f"{os.getuid()}:{os.getgid()}", "PWD": str(ROOT)}
    command = [*compose, "--project-name", PROJECT, "--project-directory", str(ROOT), "--file", str(FILE)]
    environment = {**os.environ, **variables}
    try:
        done = subprocess.run(
            [*command, "up", "--detach"], env=environment, capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stderr
        yield variables
    finally:
        subprocess.run(
            [*command, "down", "--volumes", "--timeout", "3"], env=environment, capture_output=True, timeout=120
        )
    mine = {"label": f"com.docker.compose.project={PROJECT}"}
    assert not engine.containers.list(all=True, filters=mine)
    assert not engine.volumes.list(filters=mine)
    assert not engine.networks.list(filters=mine)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_stack_server_is_healthy_and_its_worker_waits_for_work(stack: dict[str, str]) -> None:
    server = f"http://127.0.0.1:{stack['STACK_SERVER_PORT']}/api"
    assert json.loads(ask(f"{server}/health")) is True
    deadline = time.monotonic() + 120
    online: list[str] = []
    while not online and time.monotonic() < deadline:
        try:
            workers = json.loads(ask(f"{server}/work_pools/ratchet/workers/filter", {}, seconds=5))
            online = [worker["name"] for worker in workers if worker["status"] == "ONLINE"]
        except OSError:  # the pool comes with its worker
            time.sleep(1)
    assert len(online) == 1


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_stack_store_keeps_what_it_is_given(stack: dict[str, str]) -> None:
    bucket = f"http://127.0.0.1:{stack['STACK_STORE_PORT']}/bucket"
    ask(bucket, method="PUT")
    readable = {"x-amz-acl": "public-read", "Content-Type": "application/octet-stream"}  # the question is not signed
    request = urllib.request.Request(f"{bucket}/key", b"content", readable, method="PUT")
    urllib.request.urlopen(request, timeout=10).close()
    assert ask(f"{bucket}/key") == "content"
