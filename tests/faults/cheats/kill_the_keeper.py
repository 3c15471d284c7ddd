"""Kills the process that keeps its limits.

Stopped by the kernel: whoever loses its keeper ends with it, and a container's first process cannot be killed inside.
"""

import os
import signal
import time
from pathlib import Path


def build(spec):
    parent = os.getppid()
    if parent == 1 or "ratchet.sandbox.keeper" in Path(f"/proc/{parent}/cmdline").read_text():  # never somebody else
        os.kill(parent, signal.SIGKILL)
    time.sleep(0.5)
    raise RuntimeError("nothing comes of it")
