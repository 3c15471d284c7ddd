"""A project whose stages have run at toy size, in git and DVC's cache: a real model and tokenizer, made-up metrics.

Its stages' commands only leave a mark, so that a test sees when one was run.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import dvc.repo  # noqa: F401  (its log keeps the stderr of the moment, which must not be that of a CliRunner)
import pytest
import yaml

from toy_training import launch, make_project

ROOT = Path(__file__).resolve().parents[2]
DVC = (sys.executable, "-m", "dvc")
MARK = "ran"
RUN = f"{sys.executable} -c \"open('{MARK}', 'a')\""
VAL_BPB = {"v1": 1.7, "v2": 1.6}
TAIL = {"v1": "# one\n", "v2": "# two\n"}

STAGES: dict[str, dict[str, Any]] = {
    "prepare": {"params": ["prepare"], "outs": ["data/prepare"], "metrics": ["metrics/prepare.json"]},
    "tokenizer": {
        "deps": ["data/prepare"],
        "params": ["tokenizer"],
        "outs": ["data/tokenizer", "data/tokenizer-provenance.json"],
    },
    "train": {
        "desc": "Train the toy",
        "deps": ["data/tokenizer"],
        "params": ["train"],
        "outs": ["data/train/model", "data/train/history.tsv", "data/train/provenance.json"],
        "metrics": ["metrics/train.json"],
    },
    "evaluate": {"deps": ["data/train/model"], "params": ["evaluate"], "metrics": ["metrics/evaluate.json"]},
    "iterate": {"deps": ["data/tokenizer"], "params": ["iterate"], "outs": ["data/iterate"]},
    "plot": {"deps": ["metrics/evaluate.json"], "params": ["plot"], "outs": ["data/plot"]},
}
"""As the real dvc.yaml has them, without the code; `skill` and `team` have never run."""


def sh(where: Path, *command: str) -> str:
    """What a command in `where` prints."""
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"}
    done = subprocess.run(command, cwd=where, env=environment, check=True, capture_output=True, text=True, timeout=120)
    return done.stdout.strip()


def commit(project: Path, tag: str) -> None:
    """Take up what lies here: outputs into the cache, the rest into git, under a tag."""
    sh(project, *DVC, "commit", "-q", "-f")
    sh(project, "git", "add", "-A")
    sh(project, "git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-q", "-m", tag)
    sh(project, "git", "tag", tag)


def artifacts() -> dict[str, Any]:
    """The section of the real dvc.yaml."""
    return yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["artifacts"]


def make(root: Path) -> Path:
    """A project at `root` with the tags `v1` and `v2`, of which `v2` is checked out; a remote is not configured."""
    root.mkdir(parents=True)
    make_project(root)
    launch(root, root / "made")
    for name in ("model", "history.tsv"):
        (root / "data/train").mkdir(exist_ok=True)
        shutil.move(root / "made" / name, root / "data/train" / name)
    shutil.rmtree(root / "made")
    shutil.rmtree(root / "data/pack")
    sh(root, "git", "init", "-q", "-b", "main")
    sh(root, *DVC, "init", "-q")
    (root / ".gitignore").write_text(f"/data/\n/runs/\n/.ratchet/\n/artifacts/\n{MARK}\n")
    write_pipeline(root, named=True)
    for version in VAL_BPB:
        write_results(root, version)
        commit(root, version)
    return root


def write_pipeline(root: Path, *, named: bool) -> None:
    """dvc.yaml, with the named artifacts or without."""
    stages = {
        name: {
            "cmd": RUN,
            **{key: value for key, value in stage.items() if key != "metrics"},
            "metrics": [{path: {"cache": False}} for path in stage.get("metrics", ())],
        }
        for name, stage in STAGES.items()
    }
    document = {"stages": stages} | ({"artifacts": artifacts()} if named else {})
    (root / "dvc.yaml").write_text(yaml.safe_dump(document, sort_keys=False))


def write_results(root: Path, version: str) -> None:
    """What a run leaves; `version` shows in params, metrics, the model's source and the best arena."""
    for folder in ("data/prepare", "data/iterate", "data/plot", "metrics"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    sections = {name: {"seed": int(version[1:])} for name in STAGES}
    (root / "params.yaml").write_text(yaml.safe_dump(sections, sort_keys=False))
    (root / "data/prepare/text").write_text("the cat sings\n")
    source = root / "data/train/model/arena.py"
    source.write_text(source.read_text().removesuffix(TAIL["v1"]) + TAIL[version])
    for name in ("data/tokenizer-provenance.json", "data/train/provenance.json"):
        facts = {"commit": "c" * 40, "dirty": False, "versions": {"torch": "2.13.0"}, "image_digest": None}
        (root / name).write_text(json.dumps(facts))
    (root / "data/iterate/train.py").write_text(f"DEPTH = 1\n{TAIL[version]}")
    (root / "data/iterate/results.tsv").write_text("commit\n")
    (root / "data/plot/report.html").write_text(f"<p>{version}</p>")
    metrics = {
        "prepare": json.loads((ROOT / "metrics/prepare.json").read_text(encoding="utf-8")),
        "train": {"steps": 10, "params_m": 0.03, "held_out": None, "nested": {}},
        "evaluate": {
            "val_bpb": VAL_BPB[version],
            "ngram_bpb": 1.9,
            "documents": 476,
            "bytes": 232145,
            "probe": {"verdict": "clean"},
            "isolation": "weak",
        },
    }
    for name, values in metrics.items():
        (root / f"metrics/{name}.json").write_text(json.dumps(values))


def forget(project: Path) -> None:
    """Remove DVC's cache."""
    for file in (project / ".dvc/cache").rglob("*"):
        if file.is_file():
            file.chmod(0o644)
    shutil.rmtree(project / ".dvc/cache", ignore_errors=True)


def add_remote(project: Path, store: Path) -> None:
    """A folder as the default remote, in the project's committed configuration."""
    store.mkdir()
    sh(project, *DVC, "remote", "add", "-q", "-d", "store", str(store))
    commit_configuration(project)


def add_s3_remote(project: Path, url: str, endpoint: str) -> None:
    """A bucket of the S3 store at `endpoint` as the default remote, in the project's committed configuration."""
    sh(project, *DVC, "remote", "add", "-q", "-d", "store", url)
    sh(project, *DVC, "remote", "modify", "-q", "store", "endpointurl", endpoint)
    commit_configuration(project)


def commit_configuration(project: Path) -> None:
    """A commit of the remote that was just added."""
    sh(project, "git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-q", "-am", "a remote")


def enter_copy(made: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the project `made` below `folder`, which becomes the working directory."""
    root = folder / "project ü"
    shutil.copytree(made, root, symlinks=True)
    monkeypatch.chdir(root)
    return root
