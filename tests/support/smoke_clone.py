"""This working tree as a project of its own under the smoke profile, with nothing computed yet."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import yaml

from ratchet.copies import wanted_params
from ratchet.dag import read_dag

ROOT = Path(__file__).resolve().parents[2]


def clone(target: Path, settings: Sequence[str] = ()) -> Path:
    """This working tree, uncommitted changes included, as a fresh repository. `settings`: SECTION.KEY=VALUE."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    products = {str(path) for node in read_dag(ROOT).nodes for path in node.outs} | {"dvc.lock"}
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file() and name not in products:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    (target / "params.yaml").write_text(yaml.safe_dump(wanted_params(ROOT, "smoke", list(settings)), sort_keys=False))
    who = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false")
    when = dict.fromkeys(("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), "2026-01-01T00:00:00Z")  # two clones, one commit
    for command in (["init", "-q"], ["add", "-A"], [*who, "commit", "-q", "-m", "start"]):
        subprocess.run(["git", *command], cwd=target, env={**os.environ, **when}, check=True)
    return target
