"""A project small enough to train in a second: generated sentences, 300 ids, rows of 16, an arena one layer deep."""

from __future__ import annotations

import json
import os
import random
import shutil
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch._dynamo  # noqa: F401  (AdamW imports it, 2 s: once here rather than in every forked child)
import yaml

from ratchet.core.errors import RatchetError
from ratchet.core.fingerprint import file_digest
from ratchet.data.packing import pack_split
from ratchet.data.row_plan import Gaps
from ratchet.data.tokenizer_training import train as train_tokenizer
from ratchet.params import merge
from ratchet.settings import Settings
from ratchet.train.job import Published, Request
from ratchet.train.launch import sealed_digest, train_as_rank
from ratchet.train.parameters import TrainParams
from ratchet.train.trainer import Ending

ROOT = Path(__file__).resolve().parent.parent.parent
SEQUENCE_LEN, ROWS = 16, 36
MAIN = 'if __name__ == "__main__":'
WORDS = ("the", "a", "cat", "dog", "sings", "runs", "over", "under", "green", "old", "house", "river", "and", "never")

KNOBS = {"DEPTH": 1, "HEADS": 2, "HEAD_DIM": 16, "BATCH_ROWS": 4, "MLP_RATIO": 1}
TRAIN: dict[str, Any] = {
    "seed": 1,
    "horizon": {"unit": "steps", "value": 10},
    "dtype": "float32",
    "checkpoint": {"every_steps": 2, "every_seconds": 1000.0},
    "knobs": KNOBS,
}


def texts(count: int, seed: int) -> list[str]:
    """Generated sentences, the same for the same arguments."""
    draw = random.Random(seed)
    return [" ".join(draw.choice(WORDS) for _ in range(draw.randint(3, 12))) + "." for _ in range(count)]


def make_project(folder: Path, *, documents: int = 80, **train: Any) -> Path:
    """Write tokenizer, packed rows, arena, params.yaml and constraints.txt as the stages before `train` would."""
    tokenizer, _ = train_tokenizer(
        texts(400, 0), vocab_size=300, max_characters=10**6, max_document_characters=10**6, where="toy"
    )
    (folder / "data" / "tokenizer").mkdir(parents=True)
    tokenizer.save(folder / "data" / "tokenizer")
    for name, count, gaps in (("train", documents, Gaps.FILL), ("val", 10, Gaps.PAD)):
        packed = folder / "data" / "pack" / name
        packed.mkdir(parents=True)
        pack_split(
            texts(count, len(name)),
            folder / "data" / "tokenizer",
            packed,
            sequence_len=SEQUENCE_LEN,
            gaps=gaps,
            where=name,
            workers=1,
        )
    _cut(folder / "data" / "pack" / "train")
    (folder / "arena").mkdir()
    shutil.copy(ROOT / "arena" / "train.py", folder / "arena" / "train.py")
    shutil.copy(ROOT / "constraints.txt", folder / "constraints.txt")
    set_params(folder, **train)
    sealed_digest()  # kept for the forked children
    return folder


def _cut(packed: Path) -> None:
    """Keep 36 rows, so that 9 steps of 4 rows end an epoch exactly."""
    rows = np.load(packed / "rows.npy")
    assert len(rows) >= ROWS
    np.save(packed / "rows.npy", rows[:ROWS])
    manifest = json.loads((packed / "manifest.json").read_text())
    manifest |= {"rows": ROWS, "files": {"rows.npy": (packed / "rows.npy").stat().st_size}}
    (packed / "manifest.json").write_text(json.dumps(manifest))


def set_params(folder: Path, **train: Any) -> None:
    """Write params.yaml with the toy's `train` section and `train` laid over it."""
    sections = {"train": merge(TRAIN, train), "evaluate": {}}
    (folder / "params.yaml").write_text(yaml.safe_dump(sections))


def edit_arena(project: Path, copy: Path, code: str) -> Path:
    """A copy of the project at `copy`, its data linked, whose arena has `code` at its end."""
    (copy / "arena").mkdir(parents=True)
    (copy / "data").symlink_to(project / "data")
    source = (project / "arena/train.py").read_text()
    assert MAIN in source
    (copy / "arena/train.py").write_text(source.replace(MAIN, f"{code}\n\n\n{MAIN}"))
    return copy


def launch(project: Path, where: Path, *, settings: Mapping[str, Any] | None = None, **train: Any) -> Ending:
    """Train in this process as the stage would, with run directories and outputs under `where` instead of `project`."""
    return train_as_rank(request(project, **train), published(where), usual(where, **(settings or {})))


def request(project: Path, **train: Any) -> Request:
    """What is trained: the toy's parameters with `train` laid over them."""
    params = TrainParams.model_validate(merge(TRAIN, train))
    return Request(params, project / "data/pack/train", project / "data/tokenizer", project / "arena/train.py")


def published(where: Path) -> Published:
    """Where `results` looks."""
    return Published(where / "model", where / "history.tsv", where / "timing", where / "metrics.json")


def usual(where: Path, **settings: Any) -> Settings:
    """One thread, no W&B, the run directories in `where`; `settings` laid over it."""
    here = {"device": "cpu", "threads": 1, "wandb": "disabled", "runs": where / "runs", "log_interval": 10**6}
    return Settings(**{**here, **settings})


def results(where: Path) -> dict[str, str]:
    """sha256 of all that must not depend on interruptions: weights, optimizer, generators, history, metrics."""
    checkpoint = max((where / "runs").glob("train/*/checkpoints/*"))
    files = [*(where / "model").iterdir(), where / "history.tsv", where / "metrics.json"]
    files += [checkpoint / name for name in ("model.safetensors", "optimizer.safetensors", "random.json")]
    return {("checkpoint " if checkpoint in file.parents else "") + file.name: file_digest(file) for file in files}


def in_child(body: Callable[[], object]) -> int:
    """Run `body` in a forked child; its exit code, or minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(forked(body), 0)[1])


def forked(body: Callable[[], object]) -> int:
    """Start `body` in a forked child; its pid. The child's exit code is that of a command."""
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            body()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        except RatchetError as error:
            os.write(2, f"{error}\n".encode())
            code = error.exit_code
        except BaseException:  # noqa: BLE001  (the child must never return into the test runner)
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid
