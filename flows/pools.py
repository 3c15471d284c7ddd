"""Make the work pool that process, docker or kubernetes workers serve: `python -m flows.pools docker --gpus 1`.

The template of a docker or kubernetes pool is Prefect's own, of the version that is installed, with this project's
defaults over it: the checkout at its own path, its owner, the GPU. Typed again it changes the pool. A pool runs as many
flows at once as `--limit` says, one unless told otherwise, so that one GPU runs one training.
Refuses to know what is run.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from prefect import get_client
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.exceptions import ObjectNotFound

from ratchet.core.errors import InputError, RatchetError
from ratchet.settings import child_environment

IMAGE = "ratchet-cpu:local"
CLAIM, MOUNT = "ratchet", "/ratchet"
"""Of kubernetes: the volume claim that has the checkout, and where the flow finds it."""

GRACE_S = 120
"""Between TERM and KILL: a stage that is asked to end commits first."""

LONGEST_S = 172_800
"""Of a whole run on kubernetes; the stages have limits of their own in dvc.yaml."""


ENVIRONMENT = {"HOME": "/tmp", "RATCHET_SANDBOX": "process"}
"""Of a container: an owner without a home, and no engine that could make containers for candidates."""


class Kind(NamedTuple):
    """A kind of pool that wants a package of its own."""

    worker: str
    package: str

    @property
    def extra(self) -> str:
        """The extra of this project that brings the package."""
        return self.package.replace("prefect-", "") + "-pool"


KINDS = {
    "docker": Kind("prefect_docker.worker:DockerWorker", "prefect-docker"),
    "kubernetes": Kind("prefect_kubernetes.worker:KubernetesWorker", "prefect-kubernetes"),
}


def template(kind: str, *, image: str, gpus: int, project: Path) -> dict[str, Any]:
    """The job template of a pool. Raises InputError when the worker's package is not installed."""
    if kind == "process":
        return {}
    made = _default(KINDS[kind])
    (_docker if kind == "docker" else _kubernetes)(made, gpus, project)
    defaults = {"image": image} | ({"image_pull_policy": "Never"} if kind == "docker" and ":local" in image else {})
    for name, value in defaults.items():
        made["variables"]["properties"][name]["default"] = value
    return made


def _default(kind: Kind) -> dict[str, Any]:
    module, _, name = kind.worker.partition(":")
    try:
        worker = getattr(import_module(module), name)
    except ImportError:
        do = f"pip install -c constraints-extras.txt -e '.[{kind.extra}]'"
        raise InputError("work pool", f"package {kind.package} is not installed", do) from None
    return worker.get_default_base_job_template()


def _docker(made: dict[str, Any], gpus: int, project: Path) -> None:
    """The checkout at its own path, where the flow begins, as its owner; every GPU that was asked for."""
    create: dict[str, Any] = {"working_dir": str(project), "user": f"{os.getuid()}:{os.getgid()}", "init": True}
    if gpus:
        create["device_requests"] = [{"count": gpus, "capabilities": [["gpu"]]}]
    variables = made["variables"]["properties"]
    variables["volumes"]["default"] = [f"{project}:{project}"]
    variables["container_create_kwargs"]["default"] = create
    variables["env"]["default"] = ENVIRONMENT
    if child_environment().get("PREFECT_API_URL", "").startswith(("http://127.0.0.1", "http://localhost")):
        variables["network_mode"]["default"] = "host"  # a server that listens on this machine alone


def _kubernetes(made: dict[str, Any], gpus: int, _project: Path) -> None:
    """The checkout on a volume, the GPU as a limit, never twice, and time to end."""
    spec = made["job_configuration"]["job_manifest"]["spec"]
    spec |= {"activeDeadlineSeconds": LONGEST_S}
    pod = spec["template"]["spec"]
    spec |= {
        name: pod.pop(name) for name in ("completions", "parallelism") if name in pod
    }  # Prefect has them in the pod
    pod |= {"terminationGracePeriodSeconds": GRACE_S}
    pod["volumes"] = [{"name": "checkout", "persistentVolumeClaim": {"claimName": CLAIM}}]
    (container,) = pod["containers"]
    container |= {"workingDir": MOUNT, "volumeMounts": [{"name": "checkout", "mountPath": MOUNT}]}
    if gpus:
        container["resources"]["limits"]["nvidia.com/gpu"] = str(gpus)
    variables = made["variables"]["properties"]
    variables["backoff_limit"]["default"] = 0  # the next run of the deployment goes on; a second pod would not be told
    variables["env"]["default"] = ENVIRONMENT | {"PREFECT_HOME": "/tmp/prefect"}  # not a path of the worker's machine


async def make(name: str, kind: str, made: dict[str, Any], *, limit: int) -> None:
    """Make or change the pool `name` on the server that PREFECT_API_URL names. Raises InputError for another kind."""
    async with get_client() as client:
        try:
            there = await client.read_work_pool(name)
        except ObjectNotFound:
            pool = WorkPoolCreate(name=name, type=kind, base_job_template=made, concurrency_limit=limit)
            await client.create_work_pool(pool)
            return
        if there.type != kind:
            raise InputError("work pool", f"{name!r} is of kind {there.type}", "give another one with --name")
        update = WorkPoolUpdate(concurrency_limit=limit)
        if made:
            update.base_job_template = made
        await client.update_work_pool(name, update)


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line and say what to type next."""
    parser = argparse.ArgumentParser(prog="python -m flows.pools", description=__doc__)
    parser.add_argument("kind", choices=["process", *KINDS])
    parser.add_argument("--name", help="of the pool; left out: that of the kind")
    parser.add_argument("--image", default=IMAGE, help="with the dependencies, and git for runs in a copy")
    parser.add_argument("--gpus", type=int, default=0, help="of each run")
    parser.add_argument("--limit", type=int, default=1, help="runs at once: one for each GPU")
    asked = parser.parse_args(argv)
    name = asked.name or asked.kind
    try:
        made = template(asked.kind, image=asked.image, gpus=asked.gpus, project=Path.cwd())
        asyncio.run(make(name, asked.kind, made, limit=asked.limit))
    except RatchetError as error:
        parser.exit(error.exit_code, f"{error}\n")
    print(f"pools: {name} takes {asked.limit} at once; next: prefect worker start --pool {name} --type {asked.kind}")


if __name__ == "__main__":
    main()
