"""Copies of the project: a profile or an override runs in one, so params.yaml, outputs and dvc.lock stay untouched.

A copy is a git worktree under `.ratchet/copies/<name>` with the uncommitted changes of the project in it and the
project's DVC cache behind it. Refuses to know what runs there.
"""

from __future__ import annotations

import fcntl
import filecmp
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import yaml

from ratchet import params as params_file
from ratchet.core import atomic
from ratchet.core.errors import InputError
from ratchet.core.fingerprint import digest
from ratchet.dag import writers_in

COPIES = Path(".ratchet/copies")
PROFILES = Path("profiles")
LOCK = "dvc.lock"
HOLDERS = Path(".ratchet/holders")
"""One file a copy, locked by the process that has it."""

WISH = Path(".ratchet/wish.json")
"""In a copy: the profile and the overrides that it is of."""

_held: dict[Path, int] = {}


def name_of(profile: str | None, overrides: Sequence[str]) -> str:
    """The copy's name: the profile, and a short form and hash of the overrides. The same wish has the same name."""
    if not overrides:
        return profile or "default"
    said = re.sub(r"[^\w.=-]+", "-", "+".join(overrides))[:40].strip("-.")
    return f"{profile or 'default'}+{said}+{digest(sorted(overrides))[:8]}"


def wanted_params(project: Path, profile: str | None, overrides: Sequence[str]) -> dict[str, Any]:
    """The project's params with the profile and then each `section.key=value` laid on them.

    Raises InputError for an unknown profile, section, or key (naming the nearest one).
    """
    base = params_file.read_document(project / params_file.PARAMS_FILE)
    laid = base
    if profile is not None:
        over = params_file.read_document(_profile(project, profile))
        _refuse_unknown(over, base, f"profiles/{profile}.yaml")
        laid = params_file.merge(laid, over)
    for text in overrides:
        over = params_file.parse_override(text)
        _refuse_unknown(over, base, "-S")
        laid = params_file.merge(laid, over)
    return laid


def _profile(project: Path, name: str) -> Path:
    path = project / PROFILES / f"{name}.yaml"
    if not path.is_file():
        there = ", ".join(sorted(item.stem for item in (project / PROFILES).glob("*.yaml"))) or "none"
        raise InputError("--profile", f"no profile {name!r}", f"the profiles are {there}")
    return path


def _refuse_unknown(over: dict[str, Any], base: dict[str, Any], where: str) -> None:
    for section in over:
        if section not in base:
            raise InputError(where, f"unknown section {section!r}", f"the sections are {', '.join(base)}")


def prepare_copy(project: Path, profile: str | None, overrides: Sequence[str]) -> Path:
    """The copy for this wish, made or brought up to date, ready to run in; its absolute path.

    The second time only what differs is written, and its own outputs and lock stay, so that an unchanged copy is up
    to date. The copy is this process' until it ends, also as another program (`exec`). Raises InputError when another
    process has it or a stage runs in it, and when the project is no git repository with a commit.
    """
    project = project.resolve()
    wanted = wanted_params(project, profile, overrides)
    copy = project / COPIES / name_of(profile, overrides)
    _hold(project, copy)
    new = not (copy / ".git").exists()
    if new:
        _add_worktree(project, copy)
    else:
        _git(copy, "reset", "-q", "--mixed", _head(project))
    _synchronise(project, copy, keep=() if new else _products(project))
    text = yaml.safe_dump(wanted, sort_keys=False, allow_unicode=True)
    if (copy / params_file.PARAMS_FILE).read_text(encoding="utf-8") != text:
        atomic.write_text(copy / params_file.PARAMS_FILE, text)
    if new:
        _share_cache(project, copy)
    atomic.write_json(copy / WISH, {"profile": profile, "overrides": list(overrides)})
    return copy


def as_options(profile: str | None, overrides: Sequence[str]) -> str:
    """A profile and overrides as they are typed, each with a blank before it."""
    words = [*(["--profile", profile] if profile else []), *(word for text in overrides for word in ("-S", text))]
    return "".join(f" {shlex.quote(word)}" for word in words)


def options_of(copy: Path) -> str:
    """What names `copy` on the command line: ` --profile smoke -S 'train.seed=2'`; nothing for what is no copy."""
    try:
        wish = json.loads((copy / WISH).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    return as_options(wish["profile"], wish["overrides"])


def copies(project: Path) -> list[Path]:
    """The copies there are, by name."""
    folder = project / COPIES
    return sorted(item for item in folder.iterdir() if (item / ".git").exists()) if folder.is_dir() else []


def remove_copy(project: Path, name: str) -> None:
    """Remove the copy `name` with its outputs and runs. What it put into the DVC cache stays. Raises InputError."""
    copy = project / COPIES / name
    if copy not in copies(project):
        there = ", ".join(item.name for item in copies(project)) or "none"
        raise InputError("copies", f"no copy {name!r}", f"the copies are {there}")
    _hold(project, copy)
    _git(project, "worktree", "remove", "--force", str(copy))
    os.close(_held.pop(copy))


def _hold(project: Path, copy: Path) -> None:
    """Take the copy for this process. Raises InputError naming the process that has it, or whose stage runs in it."""
    if copy not in _held:
        path = project / HOLDERS / copy.name
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 20, 0).decode().strip() or "that has just started"
            os.close(lock)
            raise _in_use(project, copy, holder) from None
        os.pwrite(lock, str(os.getpid()).ljust(20).encode(), 0)
        os.set_inheritable(lock, True)  # the flow that this process becomes holds it on
        _held[copy] = lock
    for pid in writers_in(copy / ".dvc/tmp").values():  # a stage that outlived its flow, or of a `dvc repro`
        os.close(_held.pop(copy))
        raise _in_use(project, copy, str(pid))


def _in_use(project: Path, copy: Path, pid: str) -> InputError:
    return InputError(copy.relative_to(project), f"is in use by pid {pid}", "wait for it, or end it: `ratchet stop`")


def _add_worktree(project: Path, copy: Path) -> None:
    commit = _head(project)
    _git(project, "worktree", "prune")  # a copy that was deleted by hand is still on git's list
    shutil.rmtree(copy, ignore_errors=True)
    copy.parent.mkdir(parents=True, exist_ok=True)
    _git(project, "worktree", "add", "-q", "--detach", str(copy), commit)


def _head(project: Path) -> str:
    return _git(project, "rev-parse", "--verify", "HEAD").strip()


def _git(folder: Path, *arguments: str) -> str:
    ran = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, check=False)
    if ran.returncode != 0:
        said = ran.stderr.decode("utf-8", "replace").strip().splitlines()
        raise InputError(
            folder,
            f"git {arguments[0]} failed: {said[-1] if said else ran.returncode}",
            "a copy needs a git repository with one commit: `git init`, `git add -A`, `git commit`",
        )
    return ran.stdout.decode("utf-8", "surrogateescape")


def _files(folder: Path) -> set[str]:
    """Tracked files and untracked ones that git does not ignore, as far as they exist; names as git has them."""
    names = _git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    return {name for name in names if name and ((folder / name).is_file() or (folder / name).is_symlink())}


def _products(project: Path) -> tuple[str, ...]:
    """What a run makes: the lock and every stage's outputs. A copy has its own."""
    outs: list[str] = [LOCK]
    for entry in params_file.read_document(project / "dvc.yaml").get("stages", {}).values():
        for item in [*entry.get("outs", ()), *entry.get("metrics", ()), *entry.get("plots", ())]:
            outs.append(item if isinstance(item, str) else next(iter(item)))
    return tuple(outs)


def _synchronise(project: Path, copy: Path, *, keep: Sequence[str]) -> None:
    """Make the copy's files those of the project, but params.yaml and `keep`; equal ones stay as they are."""
    own = {str(params_file.PARAMS_FILE)}
    secret = ".env"  # its place is handed to the stages instead

    def is_ours(name: str) -> bool:
        return name not in own and not any(name == path or name.startswith(f"{path}/") for path in keep)

    wanted = {name for name in _files(project) if is_ours(name) and name != secret}
    for name in {name for name in _files(copy) if is_ours(name)} - wanted:
        (copy / name).unlink()
    for name in wanted:
        source, target = project / name, copy / name
        if target.is_symlink() or not target.is_file() or not filecmp.cmp(source, target, shallow=False):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)


def _share_cache(project: Path, copy: Path) -> None:
    """Let the copy use the project's DVC cache and local settings, and take from it the outputs that its lock names."""
    from dvc.config import Config
    from dvc.repo import Repo

    with Repo(str(project)) as repo:
        cache = repo.config["cache"].get("dir") or str(Path(repo.local_dvc_dir or repo.dvc_dir or ".dvc") / "cache")
        local = cast("dict[str, Any]", repo.config.load_one("local"))
    with Config(str(copy / ".dvc"), validate=False).edit("local") as edited:
        settings = cast("dict[str, Any]", edited)
        settings.update(local)
        # Relative to here, as DVC takes it: it writes an absolute path in ASCII or fails, and ours may not be.
        settings.setdefault("cache", {})["dir"] = os.path.relpath(cache)
    with Repo(str(copy)) as repo:
        repo.checkout(allow_missing=True, force=True)
