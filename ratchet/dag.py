"""The pipeline as DVC describes it: which stages there are, in which order, and what has changed for each.

Reads dvc.yaml and dvc.lock through DVC's own API and takes no lock, so it answers while a stage runs (`dvc status`
does not). Refuses to know how a stage is run, and what any stage does.
"""

from __future__ import annotations

import difflib
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ratchet.core.errors import InfrastructureError, InputError
from ratchet.core.fingerprint import differences

if TYPE_CHECKING:
    from dvc.repo import Repo
    from dvc.stage import Stage


@dataclass(frozen=True)
class Node:
    """One stage of dvc.yaml. `parents` are the stages whose outputs it reads; `timeout_s` is None for no limit."""

    name: str
    desc: str
    parents: tuple[str, ...]
    timeout_s: float | None
    retries: int
    outs: tuple[Path, ...]
    changes: tuple[str, ...] = ()
    """Why DVC would run it by itself: one line per changed command, parameter, dependency or output."""
    running: int | None = None
    """The process that works on it now."""
    all_cores: bool = False
    """Computes with every core there is: two of these at once would each wait for the slowest thread of the other."""


@dataclass(frozen=True)
class Dag:
    """The stages, each after its parents."""

    nodes: tuple[Node, ...]

    def __getitem__(self, name: str) -> Node:
        """The stage called `name`. Raises InputError with the nearest names when there is none."""
        for node in self.nodes:
            if node.name == name:
                return node
        names = [node.name for node in self.nodes]
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"the stages are {', '.join(names)}"
        raise InputError("dvc.yaml", f"no stage {name!r}", hint)

    def above(self, name: str) -> set[str]:
        """`name` and every stage that it needs."""
        needed, waiting = {name}, [name]
        while waiting:
            new = set(self[waiting.pop()].parents) - needed
            needed |= new
            waiting += new
        return needed

    def below(self, name: str) -> set[str]:
        """`name` and every stage that needs it."""
        self[name]
        return {node.name for node in self.nodes if name in self.above(node.name)}

    def chosen(self, *, first: str | None = None, last: str | None = None) -> list[Node]:
        """The stages from `first` on and up to `last`, in order. Raises InputError: unknown name, empty choice."""
        names = {node.name for node in self.nodes}
        if first is not None:
            names &= self.below(first)
        if last is not None:
            names &= self.above(last)
        if not names:
            raise InputError("--from", f"no stage lies between {first!r} and {last!r}", "swap them, or leave one out")
        return [node for node in self.nodes if node.name in names]

    def stale(self, nodes: Iterable[Node], *, forced: Iterable[str] = ()) -> dict[str, tuple[str, ...]]:
        """Which of `nodes` DVC has to look at, and why: changed itself, forced, or reads from such a stage."""
        reasons: dict[str, tuple[str, ...]] = {}
        for node in nodes:
            above = [parent for parent in node.parents if parent in reasons]
            why = (*(["forced"] if node.name in forced else []), *node.changes)
            if why or above:
                reasons[node.name] = why or tuple(f"reads from {parent}" for parent in above)
        return reasons


def read_dag(root: Path) -> Dag:
    """The DAG of the project at `root` with every stage's changes.

    Raises InputError when dvc.yaml is wrong, InfrastructureError when files come and go each time it looks.
    """
    for patience_s in (0.1, 0.5, 2.0):
        try:
            return _read(root)
        except FileNotFoundError:  # a stage has just put an output in its place
            time.sleep(patience_s)
    raise InfrastructureError(root, "its files change while they are read", "look again when the stage has ended")


def _read(root: Path) -> Dag:
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        with Repo(str(root)) as repo:
            stages = {_name(stage): stage for stage in repo.index.stages}
            parents = {name: _parents(repo, stage) for name, stage in stages.items()}
            writers = writers_in(Path(repo.tmp_dir or ""))
            nodes = {name: _node(stage, parents[name], writers) for name, stage in stages.items()}
    except DvcException as error:
        raise InputError("dvc.yaml", f"DVC cannot read it: {_causes(error)}", "mend the file named") from None
    if not nodes:
        raise InputError("dvc.yaml", "describes no stage", "run in the project's folder")
    return Dag(tuple(nodes[name] for name in _ordered(parents)))


def _causes(error: BaseException) -> str:
    """What `error` and the errors beneath it say."""
    said = [str(error)]
    while error.__cause__ is not None:
        error = error.__cause__
        said.append(str(error))
    return ": ".join(dict.fromkeys(said))


def _name(stage: Stage) -> str:
    """Its name in dvc.yaml; DVC's own address of it depends on the working directory."""
    return str(getattr(stage, "name", None) or stage.addressing)


def _parents(repo: Repo, stage: Stage) -> tuple[str, ...]:
    return tuple(sorted(_name(parent) for parent in repo.index.graph.successors(stage)))


def _ordered(parents: dict[str, tuple[str, ...]]) -> list[str]:
    """Every stage after its parents; among equals the order of dvc.yaml."""
    done: list[str] = []
    while len(done) < len(parents):
        done.append(next(n for n, above in parents.items() if n not in done and set(above) <= set(done)))
    return done


def _node(stage: Stage, parents: tuple[str, ...], writers: dict[str, int]) -> Node:
    meta: dict[str, Any] = stage.meta or {}
    timeout = meta.get("timeout")
    return Node(
        name=_name(stage),
        desc=stage.desc or "",
        parents=parents,
        timeout_s=float(timeout) if timeout is not None else None,
        retries=int(meta.get("retries", 0)),
        all_cores=bool(meta.get("all_cores", False)),
        outs=tuple(Path(out.def_path) for out in stage.outs),
        changes=tuple(_changes(stage)),
        running=next((writers[out.fs_path] for out in stage.outs if out.fs_path in writers), None),
    )


def _changes(stage: Stage) -> list[str]:
    """One line per thing that differs from dvc.lock; empty when the stage is up to date."""
    from dvc.dependency import ParamsDependency

    if not any(item.hash_info for item in [*stage.deps, *stage.outs]):  # dvc.lock has no entry
        return ["never ran"]
    found = ["the command changed"] if stage.changed_stage() else []
    missing = {"deleted": "is missing", "not in cache": "is not in the cache"}
    for item in [*stage.deps, *stage.outs]:
        if isinstance(item, ParamsDependency):
            old = cast("dict[str, Any]", item.hash_info.value or {})
            found += [f"parameter {change}" for change in differences(old, item.read_params())]
        else:
            found += [f"{name} {missing.get(state, state)}" for name, state in item.status().items()]
    return found


def writers_in(tmp: Path) -> dict[str, int]:
    """Path being written now -> the process that does it, from DVC's lock table in `tmp`; dead processes left out."""
    import psutil

    table = tmp / "rwlock"
    try:
        locks = json.loads(table.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):  # it is rewritten in place: half a file means "just changing"
        return {}
    return {path: holder["pid"] for path, holder in locks.get("write", {}).items() if psutil.pid_exists(holder["pid"])}
