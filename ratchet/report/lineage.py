"""Where a result came from, as dvc.yaml and dvc.lock tell it: stages, what they read and wrote, with hashes.

Reads the two files as YAML, without DVC and its lock, since the report is written while DVC runs. Refuses to know
whether anything is up to date.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ratchet.core.errors import InputError


@dataclass(frozen=True)
class Item:
    """A file or folder that a stage reads or writes; `hash` is DVC's, None where the lock has none."""

    path: str
    hash: str | None


@dataclass(frozen=True)
class Node:
    """One stage: its neighbours upstream, and what the lock says that it read, wrote, and was told (`params`)."""

    name: str
    desc: str
    parents: tuple[str, ...]
    deps: tuple[Item, ...]
    outs: tuple[Item, ...]
    params: dict[str, Any]


def read(root: Path, *, writing: str) -> list[Node]:
    """The stages of the project at `root`, each after its parents.

    The entry that the lock may hold of the stage `writing` is of an earlier run and is left out. A missing lock leaves
    every hash out. Raises InputError when dvc.yaml is missing or is no DVC file.
    """
    described = _mapping(root / "dvc.yaml").get("stages") or {}
    lock = root / "dvc.lock"
    locked = (_mapping(lock).get("stages") or {}) if lock.exists() else {}
    outs = {name: _paths(stage, "outs", "metrics", "plots") for name, stage in described.items()}
    nodes = [
        _node(name, stage, {} if name == writing else locked.get(name) or {}, outs) for name, stage in described.items()
    ]
    return _in_order(nodes)


def layers(nodes: list[Node]) -> dict[str, int]:
    """For each stage the length of the longest way to it from a stage without parents."""
    depth: dict[str, int] = {}
    for node in nodes:
        depth[node.name] = 1 + max((depth[parent] for parent in node.parents), default=-1)
    return depth


def _node(name: str, stage: dict[str, Any], entry: dict[str, Any], outs: dict[str, list[str]]) -> Node:
    hashes = {
        item["path"]: item.get("md5") or item.get("hash") for kind in ("deps", "outs") for item in entry.get(kind, [])
    }
    deps = _paths(stage, "deps")
    parents = tuple(other for other, made in outs.items() if other != name and _overlap(deps, made))
    told = {key: value for section in (entry.get("params") or {}).values() for key, value in section.items()}
    return Node(
        name=name,
        desc=str(stage.get("desc", "")),
        parents=parents,
        deps=tuple(Item(path, hashes.get(path)) for path in deps),
        outs=tuple(Item(path, hashes.get(path)) for path in outs[name]),
        params=told,
    )


def _paths(stage: dict[str, Any], *kinds: str) -> list[str]:
    """The paths under `kinds`, whose items are a path or {path: options}."""
    return [
        str(next(iter(item))) if isinstance(item, dict) else str(item)
        for kind in kinds
        for item in stage.get(kind) or []
    ]


def _overlap(deps: list[str], outs: list[str]) -> bool:
    return any(dep == out or dep.startswith(f"{out}/") or out.startswith(f"{dep}/") for dep in deps for out in outs)


def _in_order(nodes: list[Node]) -> list[Node]:
    """Every stage after its parents; among equals the order of dvc.yaml."""
    done: list[Node] = []
    names: set[str] = set()
    while len(done) < len(nodes):
        ready = [node for node in nodes if node.name not in names and set(node.parents) <= names]
        if not ready:
            left = ", ".join(node.name for node in nodes if node.name not in names)
            raise InputError("dvc.yaml", f"the stages {left} wait for each other", "mend their deps and outs")
        done.append(ready[0])
        names.add(ready[0].name)
    return done


def _mapping(path: Path) -> dict[str, Any]:
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(path, "no such file", "run in the project's folder") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(path, f"not YAML: {error}", "`git checkout` the file, or run `dvc repro` again") from None
    if not isinstance(value, dict):
        raise InputError(path, f"holds a {type(value).__name__}, not a mapping", "`git checkout` the file")
    return value
