"""What makes a training another one: each part of its identity, and what is no part of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ratchet.core import atomic
from ratchet.core.fingerprint import differences
from ratchet.params import merge
from ratchet.train import launch
from ratchet.train.device import Device
from ratchet.train.job import Request
from ratchet.train.launch import identity
from ratchet.train.parameters import TrainParams
from toy_training import MAIN, TRAIN, make_project

PROCESSOR = Device("cpu", 0, "a processor", "AVX2", 2)
SEALED = ("the trainer", "what it imports", "a comment in the trainer", "unimported modules", "what shows it")
"""Changes to Ratchet's own source: made in a copy of it."""
ROOT = Path(launch.__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy project."""
    return make_project(tmp_path_factory.mktemp("toy") / "project")


@dataclass
class Subject:
    """A copy that a test may change, and what it is trained with."""

    root: Path
    params: dict[str, Any]
    device: Device

    def identity(self) -> dict[str, Any]:
        params = TrainParams.model_validate(merge(TRAIN, self.params))
        data = self.root / "data"
        request = Request(params, data / "pack/train", data / "tokenizer", self.root / "arena/train.py")
        return identity(request, request.source(), self.device, "float32")

    def edit(self, name: str, change: Callable[[str], str]) -> None:
        path = self.root / name
        text = path.read_text(encoding="utf-8")
        path.write_text(change(text), encoding="utf-8")
        assert path.read_text(encoding="utf-8") != text

    def flip(self, name: str) -> None:
        data = bytearray((self.root / name).read_bytes())
        data[-1] ^= 1
        (self.root / name).write_bytes(data)


@pytest.fixture
def subject(original: Path, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Subject:
    root = tmp_path / "project"
    shutil.copytree(original, root)
    monkeypatch.chdir(root)
    if request.node.callspec.params["kind"] not in SEALED:
        return Subject(root, {}, PROCESSOR)  # the digest of Ratchet's own code, made once, serves them all
    shutil.copytree(ROOT / "ratchet", root / "ratchet", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(launch.ratchet, "__file__", str(root / "ratchet/__init__.py"))
    monkeypatch.setattr(launch, "__file__", str(root / "ratchet/train/launch.py"))
    monkeypatch.setattr(launch, "sealed_digest", launch.sealed_digest.__wrapped__)
    return Subject(root, {}, PROCESSOR)


def add(code: str) -> Callable[[str], str]:
    """Put `code` before the arena's last lines, or at the end."""
    return lambda text: text.replace(MAIN, f"{code}\n\n\n{MAIN}") if MAIN in text else f"{text}\n{code}\n"


def on(**changes: Any) -> Callable[[Subject], None]:
    def change(subject: Subject) -> None:
        subject.device = Device(**{**vars(subject.device), **changes})

    return change


def with_params(**params: Any) -> Callable[[Subject], None]:
    return lambda subject: subject.params.update(params)


CHANGES: dict[str, tuple[str, Callable[[Subject], None]]] = {
    "data": ("inputs.rows", lambda subject: subject.flip("data/pack/train/rows.npy")),
    "tokenizer": ("inputs.tokenizer", lambda subject: subject.flip("data/tokenizer/token_bytes.npy")),
    "constraints": ("constraints", lambda subject: subject.edit("constraints.txt", add("another==1"))),
    "arena code": ("code.arena", lambda subject: subject.edit("arena/train.py", add("MORE = 1"))),
    "a knob": ("code.arena", with_params(knobs={"DEPTH": 2})),
    "the trainer": ("code.trainer", lambda subject: subject.edit("ratchet/train/trainer.py", add("MORE = 1"))),
    "what it imports": ("code.trainer", lambda subject: subject.edit("ratchet/core/seeds.py", add("MORE = 1"))),
    "seed": ("params.seed", with_params(seed=2)),
    "horizon": ("params.horizon.value", with_params(horizon={"unit": "steps", "value": 11})),
    "device kind": ("device.kind", on(kind="mps")),
    "capability": ("device.capability", on(capability="AVX512")),
    "threads": ("device.threads", on(threads=1)),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_identity_changes_with_what_decides_the_bytes_and_names_it(subject: Subject, kind: str) -> None:
    key, change = CHANGES[kind]
    before = subject.identity()
    change(subject)
    assert key in [each.key for each in differences(before, subject.identity())]


SAME: dict[str, Callable[[Subject], object]] = {
    "a comment in the arena": lambda subject: subject.edit("arena/train.py", add("# said")),
    "a comment in the trainer": lambda subject: subject.edit("ratchet/train/trainer.py", add("# said")),
    "unimported modules": lambda subject: [
        subject.edit(name, add("MORE = 1")) for name in ("ratchet/train/judge.py", "ratchet/report/plots.py")
    ],
    "what shows it": lambda subject: [
        subject.edit(f"ratchet/{name}.py", add("MORE = 1"))
        for name in ("train/mirror", "train/training_mirror", "train/launch", "tables/training_findings")
    ],
    "the validation split": lambda subject: subject.flip("data/pack/val/rows.npy"),
    "another file of the arena": lambda subject: atomic.write_text(subject.root / "arena/notes.py", "MORE = 1"),
    "stop_at": with_params(stop_at=5),
    "checkpoints": with_params(checkpoint={"every_steps": 7, "every_seconds": 9.0, "keep_last": 5, "keep_best": 2}),
    "limits": with_params(startup_limit_s=9.0, explode_ratio=9.0),
    "the processor's name": on(name="another processor"),
    "the device index": on(index=3),
}


@pytest.mark.parametrize("kind", SAME)
def test_identity_stays_with_what_does_not(subject: Subject, kind: str) -> None:
    before = subject.identity()
    SAME[kind](subject)
    assert subject.identity() == before
