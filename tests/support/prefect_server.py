"""A Prefect server for many flows: a temporary one of each flow's own costs ten seconds every time."""

from __future__ import annotations

import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from ratchet.settings import child_environment

PATIENCE_S = 300
"""A new database on a busy machine; half a minute when it is quiet."""


@contextmanager
def prefect_server(home: Path, host: str = "127.0.0.1") -> Iterator[str]:
    """The API address of a server at `host` whose database is in `home`; it ends with the block."""
    port = free_port(host)
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", host, "--port", str(port), "--no-ui"]
    home.mkdir(parents=True, exist_ok=True)
    with (home / "server.log").open("w") as log:
        server = subprocess.Popen(
            command, cwd=home, env=child_environment(PREFECT_HOME=str(home)), stdout=log, stderr=subprocess.STDOUT
        )
    try:
        address = f"http://{host}:{port}/api"
        wait_until_it_answers(server, address, home / "server.log")
        yield address
    finally:
        server.terminate()
        server.wait(60)


def free_port(host: str) -> int:
    """A port of `host` at which nobody listens."""
    with socket.socket() as free:
        free.bind((host, 0))
        return free.getsockname()[1]


def wait_until_it_answers(server: subprocess.Popen[bytes], address: str, log: Path) -> None:
    """Return when the server is healthy; fail with its log when it ends or does not become so."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until and server.poll() is None:
        with suppress(URLError, OSError), urlopen(f"{address}/health", timeout=5):
            return
        time.sleep(0.2)
    raise AssertionError(f"no Prefect server: {log.read_text()[-2000:]}")


def said_by(key: str, home: Path) -> list[str]:
    """What the artifacts called `key` in the database in `home` say, in the order in which they were made."""
    with sqlite3.connect(home / "prefect.db") as database:
        rows = database.execute("select description from artifact where key = ? order by created", (key,))
        return [description for (description,) in rows]
