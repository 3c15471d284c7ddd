"""Who owns a container: the process that will remove it. Written on the container, so that leftovers can be told.

Refuses to know containers; knows processes, and that a number alone names one only until it is used again.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
PID_NAMESPACE = Path("/proc/self/ns/pid")


@dataclass(frozen=True)
class Owner:
    """One process. `machine`: this start of this machine, in this namespace of process numbers."""

    machine: str
    pid: int
    started: str

    @classmethod
    def me(cls) -> Self:
        """This process."""
        return cls(machine(), os.getpid(), _started(os.getpid()))

    @classmethod
    def read(cls, text: str) -> Self | None:
        """The owner that `str(owner)` names; None when it names none."""
        parts = text.split(" ")
        if len(parts) != 3 or not parts[1].isdecimal():
            return None
        return cls(parts[0], int(parts[1]), parts[2])

    def __str__(self) -> str:
        return f"{self.machine} {self.pid} {self.started}"

    def is_gone(self) -> bool:
        """Whether it certainly lives no more; of another machine's process nothing is certain here."""
        if self.machine != machine():
            return False
        try:
            return _started(self.pid) != self.started
        except psutil.NoSuchProcess:
            return True


def machine() -> str:
    """A name for this start of this machine and this process namespace, without blanks."""
    if not BOOT_ID.exists():
        return socket.gethostname().replace(" ", "-")
    return f"{BOOT_ID.read_text().strip()}/{PID_NAMESPACE.readlink()}".replace(" ", "-")


def _started(pid: int) -> str:
    process = psutil.Process(pid)
    if process.status() == psutil.STATUS_ZOMBIE:
        raise psutil.NoSuchProcess(pid)
    return f"{process.create_time():.2f}"
