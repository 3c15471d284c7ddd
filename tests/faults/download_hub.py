"""A dataset hub on this machine that can misbehave in every way a real one does. Used by the download tests.

Addresses look like the hub's (`/datasets/OWNER/NAME/resolve/REVISION/FILE`); with `linked` each redirects to
`/bytes/…`, telling size, sha256 and commit on the way. Faults are given per file and used up one per request for bytes.
"""

from __future__ import annotations

import hashlib
import socket
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass(frozen=True)
class Fault:
    """One answer that is not the whole file: at most one of the fields is set."""

    status: int = 0
    retry_after: str = ""
    drop_after: int = -1
    short_by: int = 0
    flip_byte: int = -1
    ignore_range: bool = False
    shift_range: int = 0
    no_length: bool = False


@dataclass
class Request:
    """What a client asked."""

    path: str
    headers: dict[str, str]


@dataclass
class Hub:
    """Files by name, faults by name, and the log of requests. `address` is its base."""

    files: dict[str, bytes] = field(default_factory=dict)
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    linked: bool = True
    linked_sha256: dict[str, str] = field(default_factory=dict)
    weak_etag: bool = False
    bytes_at: str = ""
    token: str = ""
    log: list[Request] = field(default_factory=list)
    stall: threading.Event | None = None

    def __enter__(self) -> Hub:
        handler = type("HubHandler", (_Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *exit_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def asked(self, name: str, prefix: str = "/") -> list[Request]:
        """The requests for a file, those for its bytes alone with prefix `/bytes/`."""
        return [one for one in self.log if one.path.startswith(prefix) and one.path.endswith(name)]

    def next_fault(self, name: str) -> Fault:
        faults = self.faults.get(name, [])
        return faults.pop(0) if faults else Fault()

    def etag(self, name: str) -> str:
        strong = f'"{hashlib.md5(self.files[name]).hexdigest()}"'
        return f"W/{strong}" if self.weak_etag else strong


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        hub, name = self.hub, self.path.rsplit("/", 1)[-1]
        hub.log.append(Request(self.path, {key.lower(): value for key, value in self.headers.items()}))
        if hub.token and self.path.startswith("/datasets/") and self.headers["Authorization"] != f"Bearer {hub.token}":
            self._empty(401)
        elif name not in hub.files:
            self._empty(404)
        elif hub.linked and self.path.startswith("/datasets/"):
            self._redirect(name)
        else:
            self._bytes(name, hub.next_fault(name))

    def _empty(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _redirect(self, name: str) -> None:
        data = self.hub.files[name]
        digest = self.hub.linked_sha256.get(name, hashlib.sha256(data).hexdigest())
        self._empty(
            302,
            Location=f"{self.hub.bytes_at}/bytes/{name}",
            X_Linked_Size=str(len(data)),
            X_Linked_Etag=f'"{digest}"',
            X_Repo_Commit=COMMIT,
        )

    def _bytes(self, name: str, fault: Fault) -> None:
        if fault.status:
            self._empty(fault.status, **({"Retry_After": fault.retry_after} if fault.retry_after else {}))
            return
        data = bytearray(self.hub.files[name])
        if fault.flip_byte >= 0:
            data[fault.flip_byte] ^= 1
        if fault.short_by:
            del data[-fault.short_by :]
        start = self._start(name, fault)
        body = bytes(data[start:])
        self.send_response(206 if start else 200)
        self.send_header("ETag", self.hub.etag(name))
        if start:
            told = start + fault.shift_range
            self.send_header("Content-Range", f"bytes {told}-{len(data) - 1}/{len(data)}")
        if fault.no_length:
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self._send(body, fault)

    def _start(self, name: str, fault: Fault) -> int:
        asked = self.headers.get("Range", "")
        if not asked or fault.ignore_range or self.headers.get("If-Range") != self.hub.etag(name):
            return 0
        return int(asked.removeprefix("bytes=").split("-")[0])

    def _send(self, body: bytes, fault: Fault) -> None:
        cut = len(body) if fault.drop_after < 0 else min(len(body), fault.drop_after)
        self.wfile.write(body[:cut])
        self.wfile.flush()
        if cut < len(body):
            if self.hub.stall is not None:
                self.hub.stall.wait(60)
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        elif fault.no_length:
            self.close_connection = True
