"""`ratchet get`: the named artifacts of dvc.yaml, listed, and fetched as they were at a revision, with their card.

The project's own outputs are never touched. Refuses to know how a revision is read (revisions.py) and described
(card.py).
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.commands import card
from ratchet.commands.project import enter_project, print_json, print_table, say_next
from ratchet.commands.revisions import VERB, Revision, opened, registered
from ratchet.commands.store import one_line_errors
from ratchet.core import atomic
from ratchet.core.errors import InfrastructureError, InputError

if TYPE_CHECKING:
    from dvc.annotations import Artifact

FOLDER = Path("artifacts")
NO_FILE_NAME = re.compile(r"[^\w.+-]")


def get(wanted: str | None, *, out: Path | None, as_json: bool) -> None:
    """List the artifacts, or fetch `wanted` (NAME or NAME@VERSION) into `out`. Raises RatchetError."""
    out = None if out is None else out.resolve()
    project = enter_project()
    if wanted is None:
        show(project, as_json=as_json)
    else:
        fetch(project, wanted, out, as_json=as_json)


def show(project: Path, *, as_json: bool) -> None:
    """Print every artifact of the checkout: path, revision, size, and where its bytes are."""
    with one_line_errors(VERB), opened(project, None) as revision:
        rows = [_row(project, revision, name, one) for name, one in revision.artifacts().items()]
    if not rows:
        raise InputError("dvc.yaml", "names no artifacts", "give it a section `artifacts`: see docs/artifacts.md")
    if as_json:
        print_json(rows)
        return
    columns = ("name", "path", "revision", "registered", "size", "in")
    print_table(columns, [_cells(row) for row in rows])
    say_next("ratchet get NAME, or NAME@REVISION")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    places, versions = ", ".join(row["in"]) or "nowhere", ", ".join(row["registered"])
    return row["name"], row["path"], row["revision"], versions, size_words(row["bytes"]), places


def _row(project: Path, revision: Revision, name: str, artifact: Artifact) -> dict[str, Any]:
    size, places = None, list[str]()
    try:
        size = revision.size(artifact.path)
        places = revision.places(artifact.path)
    except (FileNotFoundError, _unlisted()):
        pass  # it is nowhere, which the row says
    return {
        "name": name,
        "path": artifact.path,
        "type": artifact.type,
        "desc": artifact.desc,
        "revision": revision.name,
        "bytes": size,
        "in": places,
        "registered": registered(project, name),
    }


def fetch(project: Path, wanted: str, out: Path | None, *, as_json: bool) -> None:
    """Put one artifact, what belongs beside it, and its card into a folder, whole or not at all."""
    name, at, version = wanted.partition("@")
    if at and not version:
        raise InputError(VERB, f"{wanted!r} names no version", f"write {name}@REVISION, or {name} alone")
    with one_line_errors(VERB):
        artifacts = _definitions(project)
    if name not in artifacts:  # before the version is looked up: a wrong name makes a wrong version of a right one
        raise _unknown(name, list(artifacts))
    with one_line_errors(VERB), opened(project, version or None, name) as revision:
        artifact = revision.artifacts().get(name, artifacts[name])
        folder = out or project / FOLDER / _folder_name(name, revision.name)
        _check_folder(project, revision, folder)
        with atomic.output_folder(folder) as temp:
            for path in (artifact.path, *artifact.meta.get("beside", [])):
                _bring(revision, name, path, temp)
            files = {
                path.relative_to(temp).as_posix(): path.stat().st_size
                for path in sorted(temp.rglob("*"))
                if path.is_file()
            }
            (temp / card.FILE).write_text(card.card(name, artifact, revision, files), encoding="utf-8")
    told = {"name": name, "version": revision.name, "commit": revision.commit, "folder": str(folder), "files": files}
    if as_json:
        print_json(told)
        return
    shown = folder.relative_to(project) if folder.is_relative_to(project) else folder
    size = size_words(sum(files.values()))
    print(f"{name}@{revision.name}: {len(files)} file{'s' * (len(files) > 1)}, {size}, and the card in {shown}")
    say_next(f"ratchet sample --model {shown}" if artifact.type == "model" else f"look at {shown / card.FILE}")


def _folder_name(name: str, version: str) -> str:
    """A branch may have slashes in its name."""
    return f"{name}@{NO_FILE_NAME.sub('-', version)}"


def _definitions(project: Path) -> dict[str, Artifact]:
    """The artifacts of the checkout: a revision from before they were named has them under the same paths."""
    from dvc.repo import Repo

    with Repo(str(project)) as repo:
        return repo.artifacts.read().get("dvc.yaml", {})


def _unknown(name: str, names: list[str]) -> InputError:
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"the artifacts are {', '.join(names) or 'none'}"
    return InputError(VERB, f"no artifact {name!r} in dvc.yaml", hint)


def _check_folder(project: Path, revision: Revision, folder: Path) -> None:
    """Raise InputError for a folder that holds anything but an earlier fetch, or is the place of an output."""
    outs = [Path(project, str(out.def_path)) for out in revision.repo.index.outs]
    if any(folder.is_relative_to(path) or path.is_relative_to(folder) for path in outs):
        raise InputError(VERB, f"{folder} is the place of a stage's output", "choose another --out")
    if folder.exists() and not (folder.is_dir() and (card.is_card(folder / card.FILE) or not any(folder.iterdir()))):
        raise InputError(VERB, f"{folder} is there, and is no earlier fetch", "choose another --out, or remove it")


def _bring(revision: Revision, name: str, path: str, folder: Path) -> None:
    try:
        if revision.entry(path) is None:
            what = f"{name} was never made at {revision.name}: dvc.lock names no {path} there"
            raise InputError(VERB, what, "name another revision, or make it: `ratchet run`")
        revision.fetch(path, folder)
    except (FileNotFoundError, _unlisted()):
        what = f"{path} of {revision.name} is neither in the cache nor in a remote"
        do = "type `ratchet push` where it was made, or check that revision out and `ratchet run`"
        raise InfrastructureError(VERB, what, do) from None


def _unlisted() -> type[Exception]:
    """What DVC raises for a folder of which it has not even the list of files."""
    from dvc_data.index import DataIndexDirError

    return DataIndexDirError


def size_words(count: int | None) -> str:
    """`312 bytes`, `1.2 MB`; `-` for None."""
    if count is None:
        return "-"
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
