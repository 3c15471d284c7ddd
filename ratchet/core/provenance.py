"""Where a result came from: commit, uncommitted changes, versions, machine. Written beside a result, never into one.

Refuses to know the environment variables and the settings: the caller passes device, threads and image digest in.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from ratchet.core.fingerprint import constraints_digest, file_digest

PACKAGES = ("ratchet", "torch", "numpy", "dvc", "prefect")


def collect(root: Path, *, exclude: Sequence[str] = (), **more: object) -> dict[str, Any]:
    """Provenance of this process in the project `root`, as JSON, `more` included. `exclude`: paths that may differ.

    Outside a git repository commit, dirty and dirty_diff_sha256 are None. A hash covers untracked files as well.
    """
    return {
        **git_state(root, exclude),
        "constraints_sha256": constraints_digest(root),
        "argv": list(sys.argv),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "platform": platform.platform(),
        **more,
    }


def git_state(root: Path, exclude: Sequence[str]) -> dict[str, Any]:
    """Commit, and the hash of every changed or untracked file. `git diff` would rewrite the index; status does not."""
    where = _git(root, "rev-parse", "HEAD", "--show-toplevel")
    how = ("--porcelain", "-z", "--untracked-files=all", "--no-renames")
    status = _git(root, "status", *how, "--", ".", *(f":(exclude){path}" for path in exclude))
    if where is None or status is None:
        return {"commit": None, "dirty": None, "dirty_diff_sha256": None}
    commit, top = os.fsdecode(where).splitlines()
    changed = hashlib.sha256()
    for entry in sorted(filter(None, status.split(b"\0"))):
        path = Path(top) / os.fsdecode(entry[3:])  # after its two letters and a blank
        changed.update(entry + b"\0" + (file_digest(path) if path.is_file() else "").encode())
    return {"commit": commit, "dirty": bool(status), "dirty_diff_sha256": changed.hexdigest() if status else None}


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
