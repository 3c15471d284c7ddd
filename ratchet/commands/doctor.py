"""`ratchet doctor [STAGE]`: everything that can be known to be wrong before a run, one finding a line.

Knows in which order a person wants to hear it; refuses to repair anything.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from ratchet.commands import doctor_machine as machine
from ratchet.commands import doctor_stages, params_of
from ratchet.commands.doctor_machine import Finding, gb
from ratchet.commands.project import PIPELINE, enter_project, print_json, print_table, say_next
from ratchet.core.errors import InputError, RatchetError
from ratchet.dag import Dag, read_dag
from ratchet.params import read_document
from ratchet.settings import Settings, settings

CONSTRAINTS, EXTRAS = Path("constraints.txt"), Path("constraints-extras.txt")

FREE_GB = 5
"""Room that a run of the default profile may want, with its cache."""


def doctor(stage: str | None, overrides: Sequence[str], *, as_json: bool) -> int:
    """Look at what all stages share and at every stage in a line, or at one stage in full. 0 when all is well."""
    project = enter_project()
    pipeline = read_document(Path(PIPELINE)).get("stages") or {}
    if stage is not None and stage not in pipeline:
        raise InputError(PIPELINE, f"no stage {stage!r}", f"the stages are {', '.join(pipeline)}")
    findings = [*shared(project), *_stages(stage, overrides, pipeline)]
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        print_table(("", "what", "found"), [("ok" if f.good else "!!", f.what, _said(f)) for f in findings])
        say_next(_next(stage) if all(f.good for f in findings) else "what stands behind the first !!")
    return 0 if all(finding.good for finding in findings) else 1


def _next(stage: str | None) -> str:
    if stage is None:
        return "ratchet run --dry-run"
    return "ratchet skill --dry-run" if stage == "skill" else f"ratchet run --until {stage}"


def _said(finding: Finding) -> str:
    return finding.found if finding.good or not finding.do else f"{finding.found}; {finding.do}"


def _stages(stage: str | None, overrides: Sequence[str], pipeline: Mapping[str, Any]) -> Iterator[Finding]:
    """Of one stage every finding; of all a line each. Nothing when parameters or settings cannot be read at all."""
    try:
        document, here = params_of.read(overrides), settings()
    except RatchetError as error:
        yield machine.told(error, "stages")
        return
    if stage is not None:
        yield from doctor_stages.examine(doctor_stages.Looked(stage, document, here, pipeline, ask=True))
        return
    for name in pipeline:
        yield _line(name, list(doctor_stages.examine(doctor_stages.Looked(name, document, here, pipeline, ask=False))))


def _line(name: str, findings: Sequence[Finding]) -> Finding:
    """A stage in one line: what is wrong first."""
    wrong = [finding for finding in findings if not finding.good]
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        return Finding(f"stage {name}", False, f"{wrong[0].what}: {_said(wrong[0])}{more}", f"`ratchet doctor {name}`")
    return Finding(f"stage {name}", True, f"{len(findings)} checks: {', '.join(finding.what for finding in findings)}")


def shared(project: Path) -> Iterator[Finding]:
    """What every stage needs, the cheap ones first."""
    version = platform.python_version()
    yield Finding("python", sys.version_info >= (3, 11), f"{version}, {sys.executable}", "install Python 3.11 or newer")
    yield packages(project / CONSTRAINTS, project / EXTRAS)
    free = machine.free_bytes(project)
    yield Finding("disk", free >= FREE_GB * 1e9, f"{gb(free)} free", f"free {FREE_GB} GB, or `ratchet runs gc`")
    yield _git(project)
    yield from _dvc(project)
    yield from _world()


def _world() -> Iterator[Finding]:
    """What the settings come to; nothing else when one of them is wrong."""
    try:
        here = settings()
    except RatchetError as error:
        yield machine.told(error, "settings")
        return
    yield _places(here)
    yield machine.device(here)
    yield machine.engine(here)
    yield machine.wandb(here)


def _places(here: Settings) -> Finding:
    places = {"RATCHET_RUNS": here.runs, "RATCHET_DOWNLOADS": here.downloads}
    wrong = [f"{name}: {why}" for name, folder in places.items() if (why := machine.writable(folder))]
    said = ", ".join(f"{name} {folder}" for name, folder in places.items())
    return Finding("places", not wrong, "; ".join(wrong) or f"{said} can be written to", "name folders that can be")


def packages(*constraints: Path) -> Finding:
    """Installed versions against the pinned ones; what two of the files pin may be either."""
    wanted: dict[str, list[str]] = {}
    for file in constraints:
        if not file.is_file():
            return Finding("packages", False, f"{file.name}: no such file", f"`git checkout {file.name}`")
        lines = file.read_text(encoding="utf-8").splitlines()
        for name, version in (line.split("==") for line in lines if line.count("==") == 1):
            wanted.setdefault(_plain(name), []).append(version)
    installed = {_plain(dist.metadata["Name"]): dist.version.partition("+")[0] for dist in metadata.distributions()}
    here = wanted.keys() & installed.keys()
    off = [f"{name} {installed[name]} (pinned {' or '.join(wanted[name])})"
           for name in sorted(here) if installed[name] not in wanted[name]]  # fmt: skip
    return Finding("packages", not off, ", ".join(off) or f"{len(here)} as pinned", "make setup")


def _plain(name: str) -> str:
    return name.strip().lower().replace("_", "-")


def _git(project: Path) -> Finding:
    """The repository, with a commit: research works in a tree of its own that begins at one."""
    ran = _ask_git(project, "status", "--porcelain")
    if ran.returncode != 0:
        return Finding("git", False, "no repository", "git init && git add -A && git commit -m start")
    head = _ask_git(project, "rev-parse", "--short", "HEAD")
    if head.returncode != 0:
        return Finding("git", False, "no commit yet", "git add -A && git commit -m start")
    branch = _ask_git(project, "branch", "--show-current").stdout.strip() or "no branch"
    changes = len(ran.stdout.splitlines())
    said = f"{changes} uncommitted changes" if changes else "clean"
    return Finding("git", True, f"{branch} at {head.stdout.strip()}, {said}")


def _ask_git(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=project, capture_output=True, text=True, check=False)


def _dvc(project: Path) -> Iterator[Finding]:
    """The pipeline as DVC reads it, and its default remote."""
    try:
        dag: Dag = read_dag(project)
    except RatchetError as error:
        yield Finding("dvc", False, error.what, error.do)
        return
    stale = dag.stale(dag.nodes)
    yield Finding("dvc", True, f"{len(dag.nodes)} stages, {len(stale)} of them to run")
    from dvc.repo import Repo

    with Repo(str(project)) as repo:
        yield machine.remote(dict(repo.config), project)
