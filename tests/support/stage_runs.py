"""Stages as processes and in containers: one by its command in dvc.yaml, or all by DVC, with keys planted around."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

from ratchet.core.fingerprint import file_digest
from smoke_clone import clone

ROOT = Path(__file__).resolve().parents[2]
PLANTED = "-".join(("planted", "key", "8c1f0e"))  # in pieces: a project that is searched for it has this file too
KEYS = {
    "OPENAI_API_KEY": f"{PLANTED}-1",
    "WANDB_API_KEY": f"{PLANTED}-2",
    "AWS_SECRET_ACCESS_KEY": f"{PLANTED}-3",
    "MY_PASSWORD": f"{PLANTED}-4",
}
"""Keys in the environment; one more is planted in .env."""

TOY = ("train.horizon.value=4", "train.checkpoint.every_steps=2", "evaluate.ngram.context_bytes=2")
"""Laid over the smoke profile: two checkpoints, and as little work as shows that the bytes are the same."""

SANDBOX = {"process": "process", "container": "required"}


@dataclass(frozen=True)
class Pipeline:
    """A project in which DVC has brought everything up to the judge's metrics up to date, and all that it printed."""

    project: Path
    said: str


def environment(image: str, where: str) -> dict[str, str]:
    """For stages, and the judge's candidates, to run `where`: "process" or "container" (of `image`)."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith("RATCHET_")}
    mine = {"RATCHET_STAGES_IN": where, "RATCHET_SANDBOX": SANDBOX[where], "RATCHET_IMAGE": image,
            "RATCHET_THREADS": "1", "RATCHET_DEVICE": "cpu"}  # fmt: skip
    python = {"PYTHONPATH": str(ROOT), "PATH": os.pathsep.join([str(Path(sys.executable).parent), bare["PATH"]])}
    return {**bare, **KEYS, **mine, **python}


def run_stage(project: Path, stage: str, image: str, where: str = "container") -> subprocess.CompletedProcess[str]:
    """The command that dvc.yaml has for `stage`."""
    command = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"][stage]["cmd"]
    return subprocess.run(
        command.split(), cwd=project, env=environment(image, where), capture_output=True, text=True, timeout=600
    )


def toy_project(project: Path) -> Path:
    """`project`, made of this working tree at toy size; one at a time: the reader of YAML is no thread's friend."""
    clone(project, TOY)
    (project / ".env").write_text(f"HF_TOKEN={PLANTED}-0\n")
    return project


def pipeline(project: Path, image: str, where: str) -> Pipeline:
    """`project` with every stage up to `evaluate` run by DVC."""
    done = subprocess.run(
        [sys.executable, "-m", "dvc", "repro", "evaluate"],
        cwd=project, env=environment(image, where), capture_output=True, text=True, timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return Pipeline(project, done.stdout + done.stderr)


def outputs(project: Path) -> dict[str, str]:
    """Every output but time, provenance and the word for where it was judged → its hash."""
    found = [path for top in ("data", "metrics") for path in (project / top).rglob("*") if path.is_file()]
    apart = ("timing.json", "provenance.json", "metrics/evaluate.json")
    kept = [path for path in found if "timing" not in path.parts and not path.as_posix().endswith(apart)]
    return {path.relative_to(project).as_posix(): file_digest(path) for path in kept}
