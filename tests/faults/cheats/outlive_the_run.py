"""Starts a session of its own, twice removed, that is to go on when the run is over.

Stopped by the sandbox, which ends all that a job has started.
"""

import os


def build(spec):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", "7654321"])
        os._exit(0)
    raise RuntimeError("gone, but not all of me")
