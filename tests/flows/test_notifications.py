"""A scheduled run that fails is told to a webhook: a real server, its own automation, a listener on this machine."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from queue import Queue

import pytest

from toy_project import Toy

FAILS = (
    "import asyncio; from flows.scheduled import scheduled; asyncio.run(scheduled(last='nowhere', return_state=True))"
)


@contextmanager
def listening() -> Iterator[tuple[str, Queue[bytes]]]:
    """The address of a listener, and what was posted to it."""
    heard: Queue[bytes] = Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.put(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/hook", heard
        server.shutdown()


@pytest.mark.slow
def test_failed_scheduled_run_is_posted_once_to_the_newest_address(toy: Toy) -> None:
    with listening() as (old, silent), listening() as (url, heard):
        for address in (old, url):
            told = toy.sh(sys.executable, "-m", "flows.notifications", address, check=False)
            assert told.returncode == 0, told.stderr
        toy.sh(sys.executable, "-c", FAILS)
        text = json.loads(heard.get(timeout=60))["text"]
        assert "of scheduled: Failed, `ratchet run` ended with exit code 2: " in text
        assert "nowhere" in text
        assert heard.empty()
        assert silent.empty()
