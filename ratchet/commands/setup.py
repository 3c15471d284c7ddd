"""`ratchet init`, `report`, `doctor`: before the first run, and after it."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import webbrowser
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Literal, NamedTuple

from ratchet.commands.project import REPORT, enter_project, find_copy, print_json, print_table, say_next
from ratchet.core.errors import InputError, RatchetError
from ratchet.params import PARAMS_FILE

CONSTRAINTS = Path("constraints.txt")

FREE_GB = 5
"""Room that a run of the default profile may want, with its cache."""


class Finding(NamedTuple):
    """One line of `ratchet doctor`. `do` is what to type when it is not good."""

    what: str
    good: bool
    found: str
    do: str = ""


def init(*, text: Path | None, parquet: Path | None, options: Mapping[str, str | None]) -> None:
    """Point the stage prepare at one's own text, in params.yaml; `options` are other keys of its section."""
    from ratchet.data.own_text import set_source

    if (text is None) == (parquet is None):
        raise InputError("ratchet init", "needs exactly one source", "add `--text FOLDER` or `--parquet FOLDER`")
    kind: Literal["text", "parquet"] = "text" if text is not None else "parquet"
    folder = (text or parquet or Path()).resolve()
    enter_project()
    print(set_source(PARAMS_FILE, kind, folder, **options))
    say_next("ratchet run --dry-run")


def report(*, profile: str | None, open_it: bool) -> None:
    """Say where the report is, and with `open_it` show it in the browser. Raises InputError when there is none."""
    project = enter_project()
    path = find_copy(project, profile, ()) / REPORT
    if not path.is_file():
        raise InputError(REPORT, "no report yet", f"type `ratchet run{f' --profile {profile}' if profile else ''}`")
    print(path)
    if open_it and not webbrowser.open(path.as_uri()):
        raise InputError("browser", "none to be found on this machine", f"open {path.as_uri()} in one")


def doctor(*, as_json: bool) -> int:
    """Look at everything a run needs; 0 when all is well, else 1."""
    project = enter_project()
    findings = list(examine(project))
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        print_table(
            ("", "what", "found"),
            [
                ("ok" if f.good else "!!", f.what, f.found + (f"; {f.do}" if f.do and not f.good else ""))
                for f in findings
            ],
        )
        say_next("ratchet run" if all(f.good for f in findings) else "what stands behind the first !!")
    return 0 if all(finding.good for finding in findings) else 1


def examine(project: Path) -> Iterable[Finding]:
    """Each finding, the cheap ones first."""
    version = platform.python_version()
    yield Finding("python", sys.version_info >= (3, 11), f"{version}, {sys.executable}", "install Python 3.11 or newer")
    yield _packages(project / CONSTRAINTS)
    free = shutil.disk_usage(project).free / 1e9
    yield Finding("disk", free >= FREE_GB, f"{free:.0f} GB free", f"free {FREE_GB} GB, or `ratchet runs gc`")
    yield _git(project)
    yield _dvc(project)


def _packages(constraints: Path) -> Finding:
    """Installed versions against the pinned ones."""
    pinned = dict(
        line.split("==") for line in constraints.read_text(encoding="utf-8").splitlines() if line.count("==") == 1
    )
    installed = {dist.metadata["Name"].lower().replace("_", "-"): dist.version for dist in metadata.distributions()}
    wanted = {name.lower().replace("_", "-"): version for name, version in pinned.items()}
    off = [f"{name} {installed[name]} (pinned {version})" for name, version in wanted.items()
           if name in installed and installed[name].partition("+")[0] != version.partition("+")[0]]  # fmt: skip
    known = sum(name in installed for name in wanted)
    return Finding("packages", not off, ", ".join(off) or f"{known} as pinned", "make setup")


def _git(project: Path) -> Finding:
    ran = subprocess.run(["git", "status", "--porcelain"], cwd=project, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        return Finding("git", False, "no repository", "git init && git add -A && git commit -m start")
    changes = len(ran.stdout.splitlines())
    return Finding("git", True, f"{changes} uncommitted changes" if changes else "clean")


def _dvc(project: Path) -> Finding:
    from ratchet.dag import read_dag

    try:
        dag = read_dag(project)
    except RatchetError as error:
        return Finding("dvc", False, error.what, error.do)
    stale = dag.stale(dag.nodes)
    return Finding("dvc", True, f"{len(dag.nodes)} stages, {len(stale)} of them to run")
