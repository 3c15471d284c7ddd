"""Sends what it knows to somebody.

Stopped by a container, which has no network. A process has the user's.
"""

import socket
from typing import Annotated

from arena.train import Experiment

PORT: Annotated[int, 1, 65535] = 9


def build(spec):
    with socket.create_connection(("127.0.0.1", PORT), timeout=10) as connection:
        connection.sendall(b"all that I know")
    return Experiment(spec)
