"""A machine that loses its power, at the size of a process."""

from __future__ import annotations

from contextlib import suppress

import psutil


def unplug(process: psutil.Process) -> None:
    """SIGKILL to `process` and everything below it. All are stopped first: one that started another meanwhile would
    leave a survivor that nobody has listed."""
    tree = list[psutil.Process]()
    with suppress(psutil.NoSuchProcess):
        while new := [each for each in [process, *process.children(recursive=True)] if each not in tree]:
            for each in new:
                with suppress(psutil.NoSuchProcess):
                    each.suspend()
            tree += new
    for each in tree:
        with suppress(psutil.NoSuchProcess):
            each.kill()
