"""`python -m flows.pools`: templates that the workers themselves take, a pool on a real server, a missing package."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen
from uuid import uuid4

import docker.types
import pytest
from kubernetes_asyncio import client as kubernetes
from prefect.client.schemas.objects import FlowRun
from prefect_docker.worker import DockerWorkerJobConfiguration
from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration

from flows import pools
from ratchet.core.errors import InputError
from ratchet.settings import child_environment

ROOT = Path(__file__).resolve().parents[2]


def configured(kind: str, configuration: type[Any], **wishes: Any) -> Any:
    """What a worker starts for a run of a deployment that wishes for nothing."""
    made = pools.template(kind, **{"image": pools.IMAGE, "gpus": 0, "project": Path("/a b"), **wishes})
    nobody = object()  # a client is asked only for blocks, and the template names none
    found = asyncio.run(configuration.from_template_and_values(base_job_template=made, values={}, client=nobody))
    found.prepare_for_flow_run(FlowRun(name="x", flow_id=uuid4()))
    return found


def test_docker_template_mounts_the_checkout_where_it_is_and_belongs_to_its_owner() -> None:
    found = configured("docker", DockerWorkerJobConfiguration)
    assert (found.image, found.image_pull_policy) == ("ratchet-cpu:local", "Never")
    assert found.volumes == ["/a b:/a b"]
    kwargs = found.container_create_kwargs
    assert (kwargs["working_dir"], kwargs["user"]) == ("/a b", f"{os.getuid()}:{os.getgid()}")
    assert kwargs["init"], "PID 1 reaps what a candidate leaves"
    assert "device_requests" not in kwargs
    assert found.env["RATCHET_SANDBOX"] == "process"


def test_docker_template_asks_the_engine_for_the_gpus() -> None:
    found = configured("docker", DockerWorkerJobConfiguration, gpus=2, image="hub/gpu:1")
    assert found.image_pull_policy is None, "one of a hub may be pulled"
    (request,) = found.container_create_kwargs["device_requests"]
    assert docker.types.DeviceRequest(**request) == {
        "Driver": "", "Count": 2, "DeviceIDs": [], "Capabilities": [["gpu"]], "Options": {}}  # fmt: skip


def test_docker_template_reaches_a_server_of_this_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    assert configured("docker", DockerWorkerJobConfiguration).network_mode == "host"
    monkeypatch.setenv("PREFECT_API_URL", "https://server.example/api")
    assert configured("docker", DockerWorkerJobConfiguration).network_mode is None


def test_kubernetes_manifest_is_a_job_without_a_field_that_kubernetes_does_not_know() -> None:
    found = configured("kubernetes", KubernetesWorkerJobConfiguration, gpus=1, image="hub/gpu:1").job_manifest
    api = kubernetes.ApiClient.__new__(kubernetes.ApiClient)  # its models alone: no event loop, no connection
    api.configuration = kubernetes.Configuration()
    job = api._ApiClient__deserialize(found, "V1Job")
    assert api.sanitize_for_serialization(job) == without_nothing(found)
    (container,) = job.spec.template.spec.containers
    assert container.resources.limits["nvidia.com/gpu"] == "1"
    assert (container.image, container.working_dir) == ("hub/gpu:1", pools.MOUNT)
    assert container.volume_mounts[0].name == job.spec.template.spec.volumes[0].name
    assert (job.spec.backoff_limit, job.spec.active_deadline_seconds) == (0, pools.LONGEST_S)
    assert job.spec.template.spec.termination_grace_period_seconds == pools.GRACE_S
    environment = {each.name: each.value for each in container.env}
    assert environment["RATCHET_SANDBOX"] == "process"
    assert environment["PREFECT_HOME"] == "/tmp/prefect", "the worker's own lies on another machine"


def without_nothing(value: Any) -> Any:
    """A manifest without what is empty, which Kubernetes takes as left out."""
    if isinstance(value, dict):
        return {key: without_nothing(inner) for key, inner in value.items() if inner is not None}
    return [without_nothing(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("kind", pools.KINDS)
def test_pool_whose_package_is_missing_gives_the_line_that_installs_it(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, pools.KINDS[kind].worker.partition(":")[0], None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError) as raised:
        pools.template(kind, image=pools.IMAGE, gpus=0, project=ROOT)
    line = f"pip install -c constraints-extras.txt -e '.[{kind}-pool]'"
    assert str(raised.value) == f"work pool: package prefect-{kind} is not installed; {line}"


@pytest.mark.slow
def test_pool_is_made_changed_when_typed_again_and_refused_as_another_kind(prefect_api: str) -> None:
    def type_in(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "flows.pools", *words]
        environment = child_environment(PREFECT_API_URL=prefect_api)
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)

    def there() -> dict[str, Any]:
        with urlopen(f"{prefect_api}/work_pools/one-gpu", timeout=30) as answer:
            return json.load(answer)

    made = type_in("docker", "--name", "one-gpu", "--gpus", "1")
    assert made.returncode == 0, made.stderr
    assert "next: prefect worker start --pool one-gpu --type docker" in made.stdout
    assert there()["concurrency_limit"] == 1
    assert there()["base_job_template"]["variables"]["properties"]["volumes"]["default"] == [f"{ROOT}:{ROOT}"]
    assert type_in("docker", "--name", "one-gpu", "--limit", "2", "--image", "other:1").returncode == 0
    assert there()["concurrency_limit"] == 2
    assert there()["base_job_template"]["variables"]["properties"]["image"]["default"] == "other:1"
    refused = type_in("process", "--name", "one-gpu")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "work pool: 'one-gpu' is of kind docker; give another one with --name" in refused.stderr
