"""SIGKILL at the n-th durable act of a child process: at every fsync, rename and removal, and inside a write.

The child is a fork, the kill is real, the acts are those of the code under test. Refuses to know what the code does.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path


class Killer:
    """Counts acts and kills its own process at act `nth`, after telling the parent its name."""

    def __init__(self, nth: int, tell: int) -> None:
        self.left, self.tell = nth, tell

    def act(self, name: str, before_death: Callable[[], None] | None = None) -> None:
        """One act; the last thing the process does when it is the `nth`."""
        if self.left == 0:
            if before_death:
                before_death()
            os.write(self.tell, name.encode())
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1

    def install(self) -> None:
        """Replace fsync, rename and rmtree of this process. A kill loses no page cache, so nothing is really synced."""
        replace, rmtree = Path.replace, shutil.rmtree

        def fsync(descriptor: int) -> None:
            name = Path(f"/proc/self/fd/{descriptor}").readlink().name
            if name == "ledger.jsonl":
                size = os.fstat(descriptor).st_size
                self.act("torn ledger", lambda: os.truncate(f"/proc/self/fd/{descriptor}", size - 3))
            self.act(f"before fsync of {name}")
            self.act(f"after fsync of {name}")

        def renamed(path: Path, target: Path) -> Path:
            self.act(f"before {target.name}")
            result = replace(path, target)
            self.act(f"after {target.name}")
            return result

        def removed(path: Path, ignore_errors: bool = False, onerror: Callable[..., object] | None = None) -> None:
            for item in sorted(Path(path).iterdir()) if Path(path).is_dir() else ():
                self.act("inside a removal")
                item.unlink()
            rmtree(path, ignore_errors=ignore_errors, onerror=onerror)

        os.fsync, Path.replace, shutil.rmtree = fsync, renamed, removed  # type: ignore[assignment]


killer: Killer | None = None


def write_in_two(path: Path, data: bytes) -> None:
    """A blob writer that can die half way."""
    with path.open("wb") as file:
        file.write(data[: len(data) // 2])
        file.flush()
        if killer:
            killer.act("inside a blob")
        file.write(data[len(data) // 2 :])


def run_until_killed(body: Callable[[], object], nth: int) -> str | None:
    """Run `body` in a fork that dies at its act `nth`; that act's name, or None when `body` ended before.

    Raises AssertionError when the child died of anything else.
    """
    global killer
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(read)
            killer = Killer(nth, write)
            killer.install()
            body()
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    _, status = os.waitpid(pid, 0)
    name = os.read(read, 500).decode()
    os.close(read)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL and name:
        return name
    assert status == 0, f"the child failed, status {status}"
    return None


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below `folder` by its relative name, but the lock (it holds a pid)."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "lock")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
