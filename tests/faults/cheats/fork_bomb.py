"""Starts processes until the machine has no place for more.

Stopped by the limit of processes.
"""

import os
import time


def build(spec):
    for _ in range(2000):
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
    raise RuntimeError("nobody has stopped 2,000 processes")
