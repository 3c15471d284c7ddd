"""Where a result came from: commit, uncommitted changes, versions, machine. Written beside a result, never into one.

Refuses to know the environment variables and the settings: the caller passes device, threads and image digest in.
"""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from ratchet.core.fingerprint import file_digest

PACKAGES = ("ratchet", "torch", "numpy", "dvc", "prefect")


def collect(
    root: Path, *, image_digest: str | None = None, exclude: Sequence[str] = (), packages: Sequence[str] = PACKAGES,
    **more: object,
) -> dict[str, Any]:  # fmt: skip
    """Provenance of this process in the project `root`, as JSON. `exclude`: paths that may differ from the commit.

    Outside a git repository commit, dirty and dirty_diff_sha256 are None. A hash covers untracked files as well.
    """
    constraints = root / "constraints.txt"
    return {
        **_git_state(root, [f":(exclude){path}" for path in exclude]),
        "constraints_sha256": file_digest(constraints) if constraints.is_file() else None,
        "image_digest": image_digest,
        "argv": list(sys.argv),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in packages}},
        "platform": platform.platform(),
        **more,
    }


def _git_state(root: Path, exclude: list[str]) -> dict[str, Any]:
    where = [".", *exclude]
    commit = _git(root, "rev-parse", "HEAD")
    diff = _git(root, "diff", "--binary", "--no-ext-diff", "HEAD", "--", *where)
    if commit is None or diff is None:
        return {"commit": None, "dirty": None, "dirty_diff_sha256": None}
    untracked = (_git(root, "ls-files", "-z", "--others", "--exclude-standard", "--", *where) or b"").split(b"\0")
    changed = hashlib.sha256(diff)
    for name in sorted(filter(None, untracked)):
        path = root / name.decode("utf-8", "surrogateescape")
        changed.update(name + b"\0" + (file_digest(path) if path.is_file() else "").encode())
    dirty = bool(diff or any(untracked))
    return {
        "commit": commit.decode().strip(), "dirty": dirty, "dirty_diff_sha256": changed.hexdigest() if dirty else None
    }  # fmt: skip


def _git(root: Path, *arguments: str) -> bytes | None:
    """The output of a git command that takes no lock; None when git or the repository is missing."""
    try:
        command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
