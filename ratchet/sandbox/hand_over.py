"""The user that a job in a container runs as, and the folders that it may write handed to it and back.

A container's root is the machine's root where users are not mapped, so when the caller is root the job is somebody
else. Refuses to know containers.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ratchet.core.errors import InputError

NOBODY = 65534
ROOTS_HOME = Path("/root")


@dataclass(frozen=True)
class Hands:
    """The job's user and group, what has to come back to the caller, and the folder that stands for root's home."""

    uid: int
    gid: int
    lent: tuple[Path, ...] = ()
    home: Path | None = None

    def take_back(self) -> None:
        """Give all that was lent, and what the job has made in it, to the caller."""
        _give(self.lent, os.getuid(), os.getgid())
        if self.home is not None:
            shutil.rmtree(self.home, ignore_errors=True)


def hand_over(reads: Iterable[Path], writes: Iterable[Path], where: str) -> Hands:
    """Choose the user that a job runs as and hand it what it writes.

    Anybody but root runs the job as itself. Raises InputError naming `where` for a path that root could read and the
    job cannot.
    """
    if os.getuid() != 0:
        return Hands(os.getuid(), os.getgid())
    for path in reads:
        wanted = 0o005 if path.is_dir() else 0o004
        if path.stat().st_mode & wanted != wanted:
            raise InputError(where, f"{path} is for its owner alone", f"`chmod -R o+rX {path}`: the job is not root")
    lent = tuple(writes)
    _give(lent, NOBODY, NOBODY)
    return Hands(NOBODY, NOBODY, lent)


def stand_in(places: Iterable[tuple[Path, Path]]) -> Path | None:
    """An empty folder to mount in the place of root's home, which an image lets only root enter; None when none of
    `places` lies below it. Each is (where the job sees it, what lies there), and gets a place to be mounted at.
    """
    below = [(path.relative_to(ROOTS_HOME), source) for path, source in places if path.is_relative_to(ROOTS_HOME)]
    if not below or os.getuid() != 0:
        return None
    home = Path(tempfile.mkdtemp(prefix="ratchet-home-"))
    home.chmod(0o755)
    for path, source in below:
        place = home / path
        (place if source.is_dir() else place.parent).mkdir(parents=True, exist_ok=True)
        if not source.is_dir():
            place.touch()
    return home


def _give(paths: tuple[Path, ...], uid: int, gid: int) -> None:
    """Make `uid` and `gid` own `paths` and what is below; links themselves, never what they point to."""
    for top in paths:
        for path in (top, *_below(top)):
            with suppress(FileNotFoundError):  # others of the caller's write there: temp files go
                os.chown(path, uid, gid, follow_symlinks=False)


def _below(top: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(top):
        yield from (Path(folder, name) for name in (*folders, *files))
