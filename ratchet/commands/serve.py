"""`ratchet serve`: the schedules of prefect.yaml on this machine, a server, a pool and a worker, until Ctrl-C.

With PREFECT_API_URL set that server is used and none is started. Refuses to know what the deployments do.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from urllib.error import URLError
from urllib.request import urlopen

from ratchet.commands.project import enter_project
from ratchet.core.errors import InfrastructureError, InputError
from ratchet.settings import child_environment

FILE = Path("prefect.yaml")
POOL = "ratchet"
API = "PREFECT_API_URL"
LOGS = Path(".ratchet/logs")
PATIENCE_S, GRACE_S = 300.0, 60.0


def serve(*, port: int) -> int:
    """Serve until interrupted; 130 then, or the worker's exit code. Raises InputError without prefect.yaml, and
    InfrastructureError when the server does not start."""
    enter_project()
    if not FILE.is_file():
        raise InputError(FILE, "no such file", "take it from the repository; it has the schedules")
    LOGS.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, _interrupt)
    environment = child_environment()
    with ExitStack() as running, suppress(KeyboardInterrupt):
        if API not in environment:
            address = f"http://127.0.0.1:{port}/api"
            server = running.enter_context(_prefect(environment, "server", "start", "--host", "127.0.0.1",
                                                    "--port", str(port), log=LOGS / "server.log"))  # fmt: skip
            _wait_until_it_answers(server, address)
            environment = {**environment, API: address, "PREFECT_SERVER_UI_API_URL": address}
            print(f"serve: the server's page is http://127.0.0.1:{port}", flush=True)
        _deploy(environment)
        worker = running.enter_context(_prefect(environment, "worker", "start", "--pool", POOL, "--type", "process"))
        return worker.wait()
    return 130


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextmanager
def _prefect(
    environment: Mapping[str, str], *arguments: str, log: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A prefect command under way, its words in `log` or on the terminal; it has ended when the block has."""
    with ExitStack() as files:
        out = files.enter_context(log.open("w")) if log else None
        process = subprocess.Popen([sys.executable, "-m", "prefect", *arguments], env=environment, stdout=out,
                                   stderr=subprocess.STDOUT if out else None)  # fmt: skip
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_it_answers(server: subprocess.Popen[bytes], address: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until and server.poll() is None:
        with suppress(URLError, OSError), urlopen(f"{address}/health", timeout=5):
            return
        time.sleep(0.2)
    raise InfrastructureError("serve", f"no Prefect server at {address}", f"see {LOGS / 'server.log'}; try --port")


def _deploy(environment: Mapping[str, str]) -> None:
    """The pool, if it is not there, and every deployment of prefect.yaml. Raises InfrastructureError."""
    here = [sys.executable, "-m", "prefect", "--no-prompt"]
    there = subprocess.run([*here, "work-pool", "inspect", POOL], env=environment, capture_output=True, check=False)
    steps = [] if there.returncode == 0 else [["work-pool", "create", POOL, "--type", "process"]]
    for step in [*steps, ["deploy", "--all"]]:
        done = subprocess.run([*here, *step], env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1]
            raise InfrastructureError(f"prefect {' '.join(step)}", last, "mend prefect.yaml, or look at the server")
    print(f"serve: the deployments of {FILE} are in the pool {POOL}; Ctrl-C ends the schedules", flush=True)
