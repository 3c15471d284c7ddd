"""A real browser for tests: headless Chromium, driven over its DevTools socket.

Without Chromium every test here is skipped, and the reason says what to install. CI has it: there a skip is a failure
(tests/conftest.py), for a page that nobody has opened is not tested.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
DESKTOP, PHONE = (1280, 900), (390, 844)


class Page:
    """One open page. `problems` collects every console error, uncaught exception, and request for anything."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._number = socket, 0
        self._events: list[dict[str, Any]] = []
        self.problems: list[str] = []
        self.requested: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: object) -> dict[str, Any]:
        """The answer to one DevTools command."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=60))
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]
            self._hear(message)

    def open(self, path: Path, *, size: tuple[int, int] = DESKTOP, dark: bool = False) -> None:
        """Load a file at a window size, in light or dark, and wait until it has loaded."""
        width, height = size
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self._events.clear()
        self.send("Page.navigate", url=path.resolve().as_uri())
        deadline = time.monotonic() + 60
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            assert time.monotonic() < deadline, f"{path} has not loaded in 60 s"
            self._hear(json.loads(self._socket.recv(timeout=60)))

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press and release a key where the focus is."""
        text = {"Enter": "\r", "Space": " "}.get(key, "")
        code = {"Enter": 13, "Space": 32, "Tab": 9, "ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35}[key]
        named = {"key": " " if key == "Space" else key, "code": key, "windowsVirtualKeyCode": code}
        self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **named)
        self.send("Input.dispatchKeyEvent", type="keyUp", **named)

    def type(self, text: str) -> None:
        """Type text where the focus is."""
        self.send("Input.insertText", text=text)

    def screenshot(self, path: Path) -> Path:
        """The whole page as PNG at `path`."""
        shot = self.send("Page.captureScreenshot", captureBeyondViewport=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(shot["data"]))
        return path

    def _hear(self, message: dict[str, Any]) -> None:
        self._events.append(message)
        told = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.problems.append(str(told["exceptionDetails"].get("exception", told)))
            case "Runtime.consoleAPICalled" if told["type"] in ("error", "warning", "assert"):
                self.problems.append(f"console.{told['type']}: {told['args']}")
            case "Log.entryAdded" if told["entry"]["level"] in ("error", "warning"):
                self.problems.append(f"log: {told['entry']['text']}")
            case "Network.requestWillBeSent" if not told["request"]["url"].startswith("data:"):  # the page's own bytes
                self.requested.append(told["request"]["url"])


@pytest.fixture(scope="session")
def chromium() -> Iterator[str]:
    """The address of a running Chromium's DevTools page."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("needs a browser: none of " + ", ".join(PROGRAMS) + " is on PATH; `apt-get install -y chromium`")
    with tempfile.TemporaryDirectory(prefix="ratchet-chromium-", ignore_cleanup_errors=True) as profile:
        command = [program, *FLAGS, f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank"]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            yield _address(Path(profile) / "DevToolsActivePort", process)
        finally:
            process.terminate()
            process.wait(timeout=20)


def _address(port_file: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, f"chromium ended with {process.returncode}"
        lines = port_file.read_text().split() if port_file.exists() else []
        if len(lines) == 2:
            return f"127.0.0.1:{lines[0]}{lines[1]}"
        time.sleep(0.05)
    raise AssertionError("chromium has not opened its DevTools port in 60 s")


@pytest.fixture
def page(chromium: str) -> Iterator[Page]:
    """A new page of the running browser."""
    with connect(f"ws://{chromium}", max_size=None) as browser:
        sender = _Browser(browser)
        target = sender.send("Target.createTarget", url="about:blank")["targetId"]
        host = chromium.partition("/")[0]
        with connect(f"ws://{host}/devtools/page/{target}", max_size=None) as socket:
            yield Page(socket)
        sender.send("Target.closeTarget", targetId=target)


class _Browser:
    """The browser's own socket: opens and closes pages."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._number = socket, 0

    def send(self, method: str, **parameters: object) -> dict[str, Any]:
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=60))
            if message.get("id") == self._number:
                return message["result"]
