"""A local endpoint with OpenAI's protocol that misbehaves on command: over HTTP, on 127.0.0.1, in threads.

`plan` is what it does with the next requests, in order; when it is used up it answers with `answer(body)`.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

Body = dict[str, Any]


@dataclass(frozen=True)
class Act:
    """One thing to do with one request."""

    status: int = 200
    body: bytes | None = None
    """What to answer; None = a good answer with `text`."""
    text: str | None = "fine"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    delay_s: float = 0.0
    """Before the first byte."""
    drip_s: float = 0.0
    """Before each byte of the body."""
    drop: bool = False
    """Close the connection half way through the body."""
    finish: str = "stop"
    refusal: str | None = None
    usage: bool = True


def error(status: int, message: str = "no", code: str | None = None, **headers: str) -> Act:
    """An error answer as the protocol has it."""
    body = json.dumps({"error": {"message": message, "type": "made_up", "code": code}}).encode()
    return Act(status, body, headers={name.replace("_", "-"): value for name, value in headers.items()})


OUTAGE, SLOW_DOWN = error(503, "overloaded"), error(429, "slow down", retry_after="0.01")
NO_QUOTA = error(429, "no money", "insufficient_quota")
EMPTY, REFUSAL, FILTERED = Act(text=""), Act(text=None, refusal="I will not."), Act(text="", finish="content_filter")
TRUNCATED = Act(body=b'{"choices": [{"message": {"content": "hal')
NOT_THE_PROTOCOL, PAGE = Act(body=b'{"answer": 42}'), Act(body=b"<html>Bad gateway</html>")
PROSE = Act(text="I would rather tell you about it.")
HANGS, DRIPS, DROPS = Act(delay_s=3.0), Act(drip_s=0.2), Act(drop=True)


class MisbehavingLlm:
    """The endpoint; use it in a `with`. `asked`: the bodies so far, `keys`: the Authorization headers."""

    def __init__(self, plan: Iterable[Act] = (), answer: Callable[[Body], str] = lambda body: "fine") -> None:
        self.plan, self.answer = list(plan), answer
        self.asked: list[Body] = []
        self.keys: list[str] = []
        self.paths: list[str] = []
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.owner = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def take(self, path: str, key: str, body: Body) -> Act:
        """Note a request and say what to do with it."""
        with self._lock:
            self.asked.append(body)
            self.keys.append(key)
            self.paths.append(path)
            return self.plan.pop(0) if self.plan else Act(text=self.answer(body))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    owner: MisbehavingLlm

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gave up is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        body = json.loads(self.rfile.read(length))
        act = self.server.owner.take(self.path, self.headers.get("Authorization", ""), body)
        time.sleep(act.delay_s)
        data = act.body if act.body is not None else self._good(act, body)
        self.send_response(act.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in act.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if act.drop:
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        elif act.drip_s:
            for place in range(len(data)):
                self.wfile.write(data[place : place + 1])
                time.sleep(act.drip_s)
        else:
            self.wfile.write(data)

    def _good(self, act: Act, body: Body) -> bytes:
        said = act.text if act.text is not None else None
        chat = self.path.endswith("/chat/completions")
        message = {"role": "assistant", "content": said, "refusal": act.refusal}
        choice: Body = {"index": 0, "finish_reason": act.finish} | ({"message": message} if chat else {"text": said})
        answer: Body = {"id": "1", "object": "x", "created": 0, "model": body["model"], "choices": [choice]}
        if act.usage:
            answer["usage"] = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        return json.dumps(answer).encode()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""
