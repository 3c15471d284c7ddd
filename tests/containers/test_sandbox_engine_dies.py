"""An engine that dies in the middle is the world's fault: never a crash of the job, and nothing of it stays.

On an engine of this test's own: no other work is on it, so it can be killed.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from docker.errors import DockerException
from requests.exceptions import RequestException

from jobs import LIMITS, living_with, until
from ratchet.core.errors import InfrastructureError
from ratchet.sandbox.container import OWNER_LABEL, ContainerSandbox
from ratchet.sandbox.job import End, Job

IMAGE = "ratchet-sleep:test"


class Engine:
    """A dockerd with its data, its state and its socket in one folder."""

    def __init__(self, root: Path) -> None:
        self.root, self.address = root, f"unix://{root}/s"

    def start(self) -> None:
        """Start it and wait until it answers."""
        for stale in (
            "pid",
            "exec/containerd/containerd.pid",
        ):  # where init reaps nothing, a killed one seems alive
            (self.root / stale).unlink(missing_ok=True)
        options = {"data-root": "data", "exec-root": "exec", "pidfile": "pid"}
        with (self.root / "log").open("ab") as log:
            self.process = subprocess.Popen(
                # In a network of its own: with --bridge=none it would take the bridge of the engine beside it away.
                ["unshare", "--net", "dockerd", "-H", self.address, "--bridge=none", "--iptables=false",
                 "--storage-driver=vfs",
                 *(f"--{name}={self.root / path}" for name, path in options.items())],
                stdout=log, stderr=log,
            )  # fmt: skip
        until(self.answers, 60)

    def answers(self) -> bool:
        """Whether it does."""
        assert self.process.poll() is None, (self.root / "log").read_text()[-2000:]
        try:
            return docker.DockerClient(self.address).ping()
        except (DockerException, RequestException):
            return False

    def end(self, which: signal.Signals) -> None:
        """Send it a signal and wait for its end."""
        self.process.send_signal(which)
        self.process.wait(60)


@pytest.fixture(scope="module")
def own_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine with one image of two megabytes. When all is done neither a process nor a mount of it is left."""
    if os.geteuid() or not shutil.which("dockerd"):
        pytest.skip("needs root and dockerd")
    root = tmp_path_factory.mktemp("e")
    engine = Engine(root)
    engine.start()
    docker.DockerClient(engine.address).api.import_image_from_data(_image(), repository=IMAGE.split(":")[0], tag="test")
    yield engine
    if engine.process.poll() is not None:  # a test has failed: what it left can only be ended by an engine
        engine.start()
    engine.end(signal.SIGTERM)
    until(lambda: not living_with(str(root)), 30)
    while f" {root}/data " in Path("/proc/self/mounts").read_text():  # one for each engine that was killed
        subprocess.run(["umount", root / "data"], check=True)
    assert str(root) not in Path("/proc/self/mounts").read_text()
    shutil.rmtree(root)


def _image() -> bytes:
    """A root with `sleep`, `true`, and the libraries they need."""
    programs = [Path(found) for name in ("sleep", "true") if (found := shutil.which(name))]
    needed = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True).stdout
    libraries = {Path(found) for found in re.findall(r"(/\S+\.so\S*) \(", needed)}
    buffer = io.BytesIO()
    places = {path: Path("usr/bin", path.name) for path in programs} | {
        path: path.relative_to("/") for path in libraries
    }
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for folder in sorted({parent for place in places.values() for parent in place.parents}):
            entry = tarfile.TarInfo(str(folder))
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for path, place in places.items():
            tar.add(path.resolve(), str(place))
    return buffer.getvalue()


def sleeping(folder: Path, seconds: str = "60") -> Job:
    folder.mkdir(exist_ok=True)
    return Job(
        name="s", argv=("/usr/bin/sleep", seconds), folder=folder, log=folder / "log", limits=LIMITS, writes=(folder,)
    )


@pytest.mark.slow
@pytest.mark.parametrize("which", [signal.SIGKILL, signal.SIGTERM])
def test_engine_that_dies_is_infrastructure_and_what_it_kept_goes_with_the_next_start(
    which: signal.Signals, own_engine: Engine, tmp_path: Path
) -> None:
    sandbox = ContainerSandbox(IMAGE, engine=own_engine.address)
    with sandbox.start(sleeping(tmp_path / "w")) as running:
        time.sleep(0.5)
        assert running.poll() is None
        own_engine.end(which)
        with pytest.raises(InfrastructureError, match=r"the container engine failed .*run again"):
            running.wait()
        with pytest.raises(InfrastructureError, match="engine failed"):  # and it stays so
            running.poll()
    assert (tmp_path / "w").stat().st_uid == os.getuid()
    with pytest.raises(InfrastructureError, match="no container can be made"):
        sandbox.start(sleeping(tmp_path / "w"))
    own_engine.start()
    with sandbox.start(sleeping(tmp_path / "w", "0.1")) as again:
        assert again.wait().end is End.DONE
    assert docker.DockerClient(own_engine.address).containers.list(all=True, filters={"label": OWNER_LABEL}) == []


@pytest.mark.slow
def test_engine_that_is_gone_is_told_when_a_sandbox_is_made(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match=r"no container engine answers: .*RATCHET_SANDBOX=process"):
        ContainerSandbox(IMAGE, engine=f"unix://{tmp_path}/none")
