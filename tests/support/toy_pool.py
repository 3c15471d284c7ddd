"""A pool of machines at toy size: clones of one project that share a DVC remote and a Prefect server, and a network
between them that can be cut. `python -m toy_pool PROJECT OUT LOST_S` runs the session whose experiments go to the pool.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from power import unplug
from ratchet.loops.research.session import Parts, Published, iterate_and_publish
from ratchet.settings import child_environment
from toy_session import Scripted, edit, git, request, settings, toy_repository

PROJECT = Path(__file__).resolve().parents[2]
POOL = "boxes"
SCRIPT = [
    ("wider", edit("WIDTH = 4", "WIDTH = 5")),
    ("narrower", edit("WIDTH = 4", "WIDTH = 3")),
    ("crashes", edit('FAIL = ""', 'FAIL = "boom"')),
]
SIZE = {"experiments": len(SCRIPT), "parallel": 3, "noise_seeds": 3}
ENTRYPOINT = "flows/toy_experiment.py:experiment"
FLOW = """
\"\"\"The flow `experiment` with a laboratory that computes a score, in as many seconds as its machine needs.\"\"\"

import os
import time

import flows.experiment as real
from toy_session import fake_laboratory

experiment = real.experiment


def slow(job, worker):
    time.sleep(float(os.environ["EXPERIMENT_S"]))
    return fake_laboratory(job, worker)


real.laboratory = lambda here, device: slow
"""


class Cable:
    """A TCP proxy before `address`, which counts HTTP requests; while it is cut nothing passes, nobody can connect."""

    def __init__(self, address: str) -> None:
        self._to = (urlsplit(address).hostname, urlsplit(address).port)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}/api"
        self._lock, self._open = threading.Lock(), list[socket.socket]()
        self._listener: socket.socket | None = None
        self.requests = 0
        self.join()

    def join(self) -> None:
        """Let the network be whole."""
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut(self) -> None:
        """Cut it, whatever is under way."""
        assert self._listener is not None
        with self._lock:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            for each in self._open:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            self._open.clear()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
                far = socket.create_connection(self._to)
            except OSError:
                return
            with self._lock:
                self._open += [near, far]
            threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        ways = {near: far, far: near}
        with near, far, suppress(OSError, ValueError):
            while True:
                for ready in select.select([*ways], [], [])[0]:
                    data = ready.recv(65536)
                    if not data:
                        return
                    self.requests += data.count(b" HTTP/1.1\r\n") if ready is near else 0
                    ways[ready].sendall(data)


def make_pool_project(folder: Path) -> tuple[Path, Path]:
    """The toy repository with its data in a DVC remote that is a folder, and that folder."""
    project, remote = toy_repository(folder / "session"), folder.parent / "remote"  # DVC writes ASCII addresses
    (project / ".gitignore").write_text("/runs/\n/out/\n/.ratchet/\n__pycache__/\n")
    dvc(project, "init", "-q")
    dvc(project, "config", "core.analytics", "false")
    dvc(project, "remote", "add", "-q", "-d", "store", str(remote))
    dvc(project, "add", "-q", "data/pack", "data/tokenizer")
    shutil.copytree(PROJECT / "flows", project / "flows", ignore=shutil.ignore_patterns("__pycache__"))
    (project / "flows/toy_experiment.py").write_text(FLOW)
    git(project, "add", "-A")
    git(project, "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-q", "-m", "data and flows")
    dvc(project, "push", "-q")
    return project, remote


def dvc(project: Path, *arguments: str) -> None:
    """A DVC command in `project`; DVC writes its configuration in the locale's encoding."""
    command, here = [sys.executable, "-m", "dvc", *arguments], child_environment()
    subprocess.run(command, cwd=project, env=here, check=True, capture_output=True, timeout=120)


def environment(home: Path, api: str, **more: str) -> dict[str, str]:
    """Of a process on a machine whose Prefect home is `home` and that finds the server at `api`."""
    bare = {name: value for name, value in child_environment().items() if not name.startswith("PREFECT_")}
    paths = os.pathsep.join([str(PROJECT), str(PROJECT / "tests/support")])
    return {**bare, "PYTHONPATH": paths, "PREFECT_HOME": str(home), "PREFECT_API_URL": api, "RATCHET_DEVICE": "cpu",
            "PREFECT_LOGGING_TO_API_ENABLED": "false", **more}  # fmt: skip


@contextmanager
def box(project: Path, folder: Path, api: str, seconds: float, query_s: int = 1) -> Iterator[psutil.Process]:
    """A machine with a clone of `project` at `folder`, its worker running, which looks for work every `query_s`;
    experiments take `seconds` there."""
    if not folder.exists():
        subprocess.run(["git", "clone", "-q", str(project), str(folder)], check=True)
    here = environment(
        folder / ".ratchet/prefect", api, EXPERIMENT_S=str(seconds), PREFECT_WORKER_QUERY_SECONDS=str(query_s)
    )
    (folder / ".ratchet").mkdir(exist_ok=True)
    with (folder / ".ratchet/worker.log").open("a") as log:
        worker = subprocess.Popen([sys.executable, "-m", "flows.experiment", "work", POOL], cwd=folder, env=here,
                                  stdout=log, stderr=log)  # fmt: skip
    try:
        yield psutil.Process(worker.pid)
    finally:
        unplug(psutil.Process(worker.pid))
        worker.wait()


def wait_until(true: Callable[[], object], patience_s: float = 60.0) -> None:
    """Wait until `true()`; fail after `patience_s`."""
    until = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.2)


def deploy(project: Path, here: Mapping[str, str]) -> None:
    """Make the pool, and the toy's flow its deployment."""
    create = ["-m", "prefect", "work-pool", "create", POOL, "--type", "process"]
    toy = f"import asyncio; from flows.experiment import deploy; asyncio.run(deploy({POOL!r}, {ENTRYPOINT!r}))"
    for command in (create, ["-c", toy]):
        subprocess.run([sys.executable, *command], cwd=project, env=here, check=True, capture_output=True, timeout=120)


def main(project: Path, out: Path, lost_s: float) -> None:
    """The session, whose experiments are runs of the deployment."""
    here = settings(project, executor="pool", experiment_lost_s=lost_s)
    where = Published(out / "iterate", out / "iterate.json")
    iterate_and_publish(request(project, **SIZE), where, here, Parts(Scripted(SCRIPT)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))
