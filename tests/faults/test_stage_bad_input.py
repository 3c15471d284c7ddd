"""Every stage as DVC starts it, on bad input: one line with the value and the way out, exit code 2, no output.

What only `prepare`, `tokenizer` and `pack` can be given (corpora, vocabularies, lengths) is in tests/unit/data.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import toy_training
from forked_stage import run_forked
from made_result import make_result
from ratchet.params import merge, read_document
from ratchet.settings import child_environment
from shards import write_documents

pytestmark = pytest.mark.slow  # each starts a process

ROOT = Path(__file__).resolve().parents[2]
ONE_LINE = re.compile(r"[^\n]+: [^\n]+; [^\n]+\n")
PARAMS = read_document(ROOT / "params.yaml")
STAGES = list(PARAMS)
LOOPS = ("iterate", "skill", "team")
"""They keep their state in a run directory as `train` does, and need a git repository or a model besides."""
QUIET = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "RATCHET_THREADS": "1", "RATCHET_WANDB": "disabled"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy project with all that the stages before `plot` read, and a trained model. Copy it before you break it."""
    project = toy_training.make_project(tmp_path_factory.mktemp("trained"))
    for name, count in (("train", 80), ("val", 10), ("test", 10)):
        write_documents(project / "data/prepare" / name, toy_training.texts(count, len(name)))
    assert toy_training.in_child(lambda: toy_training.launch(project, project / "data/train")) == 0
    shutil.rmtree(project / "data/train/runs")
    (project / "corpus").mkdir()
    (project / "corpus/all.txt").write_text("\n\n".join(toy_training.texts(300, 5)), encoding="utf-8")
    own_text = {"source": "text", "val_share": 0.1, "test_share": 0.1, "text": {"separator": "\n\n"}}
    small = {"prepare": own_text, "tokenizer": {"vocab_size": 300}, "pack": {"sequence_len": 16}}
    params = {**merge(PARAMS, small), "train": toy_training.TRAIN}
    (project / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    return project


@pytest.fixture
def project(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "a project"))


def run(stage: str, project: Path, *before: str, **more: str) -> subprocess.CompletedProcess[str]:
    """`python -m steps.STAGE` in `project`, as a fork where no command `before` has to start it."""
    environment = child_environment(**QUIET, **more)
    if not before:
        return run_forked(stage, project, environment)
    command = [*before, sys.executable, "-m", f"steps.{stage}"]
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=250)


def files(project: Path) -> dict[str, bytes]:
    """All that lies in the project's outputs, hidden temps included."""
    found = (path for top in ("data", "metrics") for path in (project / top).rglob("*") if path.is_file())
    return {path.relative_to(project).as_posix(): path.read_bytes() for path in found}


def assert_refused(done: subprocess.CompletedProcess[str], says: str) -> None:
    assert done.returncode == 2, done
    assert ONE_LINE.fullmatch(done.stderr), done
    assert says in done.stderr


TYPOS = {
    "prepare": ("shard_document", "shard_documents"),
    "tokenizer": ("vocab_sise", "vocab_size"),
    "pack": ("sequence_length", "sequence_len"),
    "train": ("sed", "seed"),
    "evaluate": ("batch_row", "batch_rows"),
    "iterate": ("experiment", "experiments"),
    "plot": ("smothing", "smoothing"),
    "skill": ("batch_sise", "batch_size"),
    "team": ("num_generation", "num_generations"),
}


@pytest.mark.parametrize("stage", STAGES)
def test_stage_params_typo_names_the_key_and_the_nearest(stage: str, tmp_path: Path) -> None:
    typo, meant = TYPOS[stage]
    params = merge(PARAMS, {stage: {typo: 1}})
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    assert_refused(run(stage, tmp_path), f"params.yaml: unknown key '{stage}.{typo}'; did you mean '{meant}'?")
    assert files(tmp_path) == {}


@pytest.mark.parametrize("stage", STAGES)
def test_stage_params_wrong_type_names_the_key_and_the_value(stage: str, tmp_path: Path) -> None:
    key = TYPOS[stage][1]
    params = merge(PARAMS, {stage: {key: "many"}})
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    assert_refused(run(stage, tmp_path), f"params.yaml: {stage}.{key} = 'many': input should be a valid ")
    assert files(tmp_path) == {}


@pytest.mark.parametrize("stage", ["train", "evaluate"])
def test_stage_missing_gpu_asked_for_by_name_is_refused(stage: str, project: Path) -> None:
    before = files(project)
    done = run(stage, project, RATCHET_DEVICE="cuda", CUDA_VISIBLE_DEVICES="")
    assert_refused(done, "device: 'cuda' asked for, but torch ")
    assert "finds 0 CUDA devices; set RATCHET_DEVICE=cpu or auto" in done.stderr
    assert files(project) == before
    assert not (project / "runs").exists()


@pytest.mark.parametrize(("stage", "split"), [("train", "train"), ("evaluate", "val")])
@pytest.mark.parametrize("name", ["rows.npy", "manifest.json"])
def test_stage_truncated_packed_file_is_named(stage: str, split: str, name: str, project: Path) -> None:
    packed = project / "data/pack" / split / name
    os.truncate(packed, packed.stat().st_size // 2)
    before = files(project)
    done = run(stage, project)
    assert_refused(done, f"data/pack/{split}/{name}: ")
    assert "run `dvc repro pack` again" in done.stderr
    assert files(project) == before
    assert not (project / "runs").exists()


FULL_DISK = """
set -e
mount -t tmpfs -o size=16m tmpfs "$1"
cp -r "$2/." "$1"
cd "$1"
find data metrics -type f | sort > "$5/before"
head -c 100M /dev/zero > filler 2>/dev/null || true
truncate -s -4096 filler
set +e
"$3" -m "steps.$4"
code=$?
find data metrics -type f | sort > "$5/after"
exit $code
"""
"""One page of 4 kB is left, so that a write begins and breaks off. The outputs' names are listed before and after."""


def _may_mount() -> bool:
    command = ["unshare", "--mount", "--map-root-user", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True).returncode == 0


may_mount = pytest.mark.skipif(
    not _may_mount(), reason="this machine does not let a process mount a file system of its own"
)


def outputs(stage: str) -> list[str]:
    entry: dict[str, Any] = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"][stage]
    return [next(iter(out)) if isinstance(out, dict) else out for out in [*entry["outs"], *entry.get("metrics", [])]]


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@may_mount
@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage not in LOOPS])
def test_stage_full_disk_is_said_in_one_line_and_leaves_no_output(stage: str, project: Path, tmp_path: Path) -> None:
    if stage == "plot":
        project = make_result(tmp_path / "made", steps=60, documents=20)
        shutil.copy(ROOT / "params.yaml", project)
        shutil.copytree(ROOT / "ratchet/report", project / "ratchet/report", ignore=shutil.ignore_patterns("*.py"))
    for out in outputs(stage):  # as DVC does before it runs a stage
        remove(project / out)
    (project / "metrics").mkdir(exist_ok=True)
    (disk := tmp_path / "disk").mkdir()
    command = ["unshare", "--mount", "--map-root-user", "sh", "-c", FULL_DISK, "sh"]
    command += [str(disk), str(project), sys.executable, stage, str(tmp_path)]
    done = subprocess.run(command, env=child_environment(**QUIET), capture_output=True, text=True, timeout=250)
    assert done.returncode == 2, done
    assert re.fullmatch(rf"{stage}: the disk is full while writing [^\n]+; free space and run again", last_line(done))
    assert "Traceback" not in done.stderr
    assert (tmp_path / "after").read_text() == (tmp_path / "before").read_text()


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """Before it a stage may tell its progress."""
    return done.stderr.splitlines()[-1]


def _dangling(file: Path) -> None:
    file.symlink_to("gone.txt")


def _circular(file: Path) -> None:
    file.symlink_to(file.name)


def _failing(file: Path) -> None:
    file.symlink_to("/proc/self/mem")  # can be opened, and gives an I/O error when it is read


def _forbidden(file: Path) -> None:
    file.write_text("a secret")
    file.chmod(0)


def _pipe(file: Path) -> None:
    os.mkfifo(file)


BAD_FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "dangling link": (_dangling, "is a link to a file that is not there (gone.txt)"),
    "circular link": (_circular, "is a link to a file that is not there (b.txt)"),
    "disk error": (_failing, "cannot be read: Input/output error"),
    "no permission": (_forbidden, "cannot be read: Permission denied"),
    "pipe": (_pipe, "is no regular file"),
}
AS_ANYONE = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
"""Root reads every file; without these capabilities it is as anyone else."""


@pytest.mark.parametrize("name", BAD_FILES)
def test_prepare_own_text_that_cannot_be_read_is_named(name: str, project: Path) -> None:
    make, says = BAD_FILES[name]
    make(project / "corpus/b.txt")
    before = files(project)
    before_it = AS_ANYONE if name == "no permission" and os.geteuid() == 0 else []
    assert_refused(run("prepare", project, *before_it), f"corpus/b.txt: {says}; ")
    assert files(project) == before


def test_prepare_folder_named_like_a_text_is_passed_over(project: Path) -> None:
    (project / "corpus/b.txt").mkdir()
    done = run("prepare", project)
    assert (done.returncode, done.stderr) == (0, "")
