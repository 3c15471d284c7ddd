"""Wheels of a few lines, and projects that need them, for tests that build images without a package index."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path


def make_wheel(
    folder: Path, name: str, version: str, *, needs: tuple[str, ...] = (), tag: str = "py3-none-any", text: str = ""
) -> Path:
    """A wheel of a package that says its version."""
    folder.mkdir(parents=True, exist_ok=True)
    plain, info = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
    files = {
        f"{plain}/__init__.py": f"VERSION = {version!r}\nNAMES = {{'a', 'b', 'c'}}\n{text}\n",
        f"{info}/METADATA": "".join(
            [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", *(f"Requires-Dist: {n}\n" for n in needs)]
        ),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: toy\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    rows = [f"{path},sha256={_hash(content)},{len(content)}" for path, content in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""])
    path = folder / f"{plain}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in files.items():
            archive.writestr(zipfile.ZipInfo(member, (1980, 1, 1, 0, 0, 0)), content)
    return path


def _hash(content: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).decode().rstrip("=")


def make_project(folder: Path, needs: list[str], pins: list[str]) -> Path:
    """A project of nothing but its dependencies and its pins."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(f"[project]\nname = 'toy'\nversion = '0'\ndependencies = {needs!r}\n")
    (folder / "constraints.txt").write_text("".join(f"{pin}\n" for pin in pins))
    return folder
