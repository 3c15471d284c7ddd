"""Machines for a test of many, on one: network namespaces with addresses of their own, plugged into one bridge.

A machine is what `ip netns` gives and the processes in it; it shares this one's cores and disk. It can be slow, lose
its power, and the bridge can be cut. Takes root, and iproute2's `ip`. Leaves nothing behind.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from ratchet.core.errors import InfrastructureError

PERIOD_S = 1.0
"""A slow machine stands still for a part of each."""
DYING_S = 30.0


def ip(*words: str) -> str:
    """What `ip` prints. Raises CalledProcessError when it fails."""
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def check_means(script: str) -> None:
    """Raise InfrastructureError when namespaces cannot be made here."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        what = f"network namespaces take root and `ip`; this is user {os.geteuid()}, ip is {shutil.which('ip')}"
        raise InfrastructureError(script, what, "run it as root, with iproute2 installed")


@contextmanager
def network() -> Iterator[Network]:
    """A bridge with an address on it, in the range that is set apart for benchmarks (RFC 2544); gone afterwards."""
    pid = os.getpid()
    bridge = f"rb{pid}"
    ip("link", "add", bridge, "type", "bridge")
    try:
        ip("addr", "add", f"198.18.{pid % 256}.1/24", "dev", bridge)
        ip("link", "set", bridge, "up")
        yield Network(bridge, f"198.18.{pid % 256}")
    finally:
        ip("link", "del", bridge)


@dataclass
class Network:
    """A bridge, the first three numbers of its addresses, and how many machines it has had."""

    bridge: str
    prefix: str
    machines: int = 0

    @property
    def address(self) -> str:
        """Where machines find this one."""
        return f"{self.prefix}.1"

    @contextmanager
    def machine(self) -> Iterator[Machine]:
        """A machine plugged in; all that runs in it is killed when the block ends."""
        self.machines += 1
        name, near, far = (f"{kind}{os.getpid()}-{self.machines}" for kind in ("ratchet-", "rn", "rf"))
        machine = Machine(name, f"{self.prefix}.{self.machines + 1}")
        ip("netns", "add", name)
        try:
            ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", name)
            ip("link", "set", near, "master", self.bridge, "up")
            ip("-n", name, "addr", "add", f"{machine.address}/24", "dev", far)
            for device in ("lo", far):
                ip("-n", name, "link", "set", device, "up")
            yield machine
        finally:
            machine.unplug()
            with suppress(subprocess.CalledProcessError):  # an error above may have come before it
                ip("link", "del", near)
            ip("netns", "del", name)

    def cut(self) -> None:
        """Let nothing pass, between nobody; who sends is not told."""
        ip("link", "set", self.bridge, "down")

    def join(self) -> None:
        """Let it be whole again."""
        ip("link", "set", self.bridge, "up")


@dataclass
class Machine:
    """A namespace by its name, and the address it has."""

    name: str
    address: str
    _started: list[subprocess.Popen[bytes]] = field(default_factory=list[subprocess.Popen[bytes]])

    def start(self, command: Sequence[str], cwd: Path, env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
        """A process in it, whose words go to `log`."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as words:
            inside = ["ip", "netns", "exec", self.name, *command]
            process = subprocess.Popen(inside, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=words, stderr=words)
        self._started.append(process)
        return process

    def send(self, number: signal.Signals) -> int:
        """Send a signal to all that runs in it; returns how many got it."""
        pids = [int(pid) for pid in ip("netns", "pids", self.name).split()]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return len(pids)

    def unplug(self) -> None:
        """SIGKILL to all that runs in it, as when its power is gone, until nothing does."""
        until = time.monotonic() + DYING_S
        while self.send(signal.SIGKILL):
            if time.monotonic() > until:
                raise InfrastructureError(self.name, "its processes do not die", "see `ip netns pids`")
            time.sleep(0.05)
        for process in self._started:
            process.wait()

    @contextmanager
    def slow(self, factor: float) -> Iterator[None]:
        """Let what runs in it stand still for all but one part in `factor` of each second."""
        ended = threading.Event()

        def brake() -> None:
            while not ended.is_set():
                self.send(signal.SIGSTOP)
                ended.wait(PERIOD_S * (1 - 1 / factor))
                self.send(signal.SIGCONT)
                ended.wait(PERIOD_S / factor)

        thread = threading.Thread(target=brake, name=f"slow {self.name}")
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
