"""A real training's outputs pass; each way to forge, hide or swap them is refused with the file's name."""

from __future__ import annotations

import gc
import io
import json
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ratchet.core import atomic
from ratchet.train.claims import asked_source, verify
from ratchet.train.device import resolve_device
from ratchet.train.job import ExperimentJob, Published
from ratchet.train.parameters import TrainParams
from ratchet.train.refusal import Reason, Refused
from tests.support.toy_training import KNOBS, ROOT, TRAIN, launch, make_project

STEPS = 2
HORIZON = {"unit": "steps", "value": STEPS}
CPU = resolve_device("cpu", 1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with `out`: what a real training of two steps published."""
    project = make_project(tmp_path_factory.mktemp("project"))
    launch(project, project / "out", horizon=HORIZON)
    return project


def job_of(project: Path, out: Path, **train: object) -> ExperimentJob:
    outputs = Published(out / "model", out / "history.tsv", out / "timing", out / "metrics.json")
    return ExperimentJob(
        params={**TRAIN, "horizon": HORIZON, "knobs": KNOBS, **train},
        rows=project / "data/pack/train",
        tokenizer=project / "data/tokenizer",
        arena=project / "arena/train.py",
        runs=out / "runs",
        outputs=outputs,
    )


def source_of(project: Path) -> str:
    return (project / "arena/train.py").read_text()


def test_claims_of_a_real_training_are_what_it_did(trained: Path) -> None:
    out = trained / "out"
    claims = verify(job_of(trained, out), source_of(trained), CPU, seconds=1e6)
    metrics = json.loads((out / "metrics.json").read_text())
    assert (claims.steps, claims.tokens) == (metrics["steps"], metrics["tokens"]) == (STEPS, STEPS * 4 * 16)
    assert claims.params_m == metrics["params_m"]
    assert claims.seconds == 1e6  # the watch outside has seen more than the process says
    assert [step for step, _ in claims.curve] == [1, 2]
    assert claims.memory_gb > 0


def test_claims_of_a_source_with_other_line_ends_hold(trained: Path) -> None:
    assert verify(job_of(trained, trained / "out"), source_of(trained).replace("\n", "\r\n"), CPU).steps == STEPS


def change(path: Path, **values: object) -> None:
    atomic.write_json(path, json.loads(path.read_text()) | values)


def link(path: Path, to: Path) -> None:
    path.unlink()
    path.symlink_to(to)


def hard_link(path: Path, to: Path) -> None:
    path.unlink()
    os.link(to, path)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def sneak_in(path: Path) -> None:
    save_file({**load_file(path), "optimizer.hidden": np.zeros(3, np.float32)}, path)


FORGERIES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no model": (lambda out: shutil.rmtree(out / "model"), "model is missing or no folder"),
    "empty model": (lambda out: [path.unlink() for path in (out / "model").iterdir()], "model holds nothing"),
    "one file more": (lambda out: (out / "model/x.py").write_text(""), "safetensors, spec.json, x.py, not"),
    "another source": (lambda out: (out / "model/arena.py").write_text("def build(spec): 0"), "is not the source"),
    "linked source": (lambda out: link(out / "model/arena.py", out / "metrics.json"), "arena.py is no file"),
    "looser dtype": (lambda out: change(out / "model/spec.json", dtype="bfloat16"), "spec.json is not the spec"),
    "linked weights": (lambda out: link(out / "model/model.safetensors", out / "metrics.json"), "no plain file"),
    "hard-linked weights": (
        lambda out: hard_link(out / "model/model.safetensors", out / "metrics.json"), "no plain file"
    ),
    "weights of another format": (
        lambda out: (out / "model/model.safetensors").write_bytes(b"\x80\x04."), "is no safetensors file"
    ),
    "hidden tensor": (lambda out: sneak_in(out / "model/model.safetensors"), "holds 'optimizer.hidden'"),
    "linked folder": (lambda out: folder_link(out / "model"), "model is missing or no folder"),
    "pipe that nobody writes to": (lambda out: pipe(out / "metrics.json"), "metrics.json is no plain file"),
    "linked metrics": (lambda out: link(out / "metrics.json", Path("/etc/passwd")), "metrics.json is no file"),
    "more steps": (lambda out: change(out / "metrics.json", steps=10**6), "says 1000000 steps, 2 were asked for"),
    "more tokens": (lambda out: change(out / "metrics.json", tokens=10**9), "2 steps of 64 are 128"),
    "steps that are none": (lambda out: change(out / "metrics.json", steps="2"), "says steps = '2'"),
    "no JSON": (lambda out: (out / "metrics.json").write_text("[" * 100_000), "metrics.json is no JSON"),
    "negative time": (lambda out: change(out / "timing/summary.json", total_seconds=-1.0), "total_seconds = -1.0"),
    "endless time": (lambda out: change(out / "timing/summary.json", total_seconds=10**400), "total_seconds = 1000"),
    "giant step": (lambda out: change(out / "metrics.json", tokens_per_step=10**400), "tokens_per_step = 1000"),
    "steps without end": (
        lambda out: change(out / "metrics.json", steps=10**12, tokens=64 * 10**12), "has 2 rows, not the steps 1 to 100"
    ),
    "shorter history": (
        lambda out: (out / "history.tsv").write_text("step\tloss\n1\t2.0\n"), "has 1 rows, not the steps 1 to 2"
    ),
    "history that is none": (lambda out: (out / "history.tsv").write_bytes(b"\xff"), "history.tsv is no history"),
}  # fmt: skip
HORIZONS = {"giant step": {"unit": "tokens", "value": 128}, "steps without end": {"unit": "seconds", "value": 1}}
"""Of the forgeries that a horizon in steps would give away before they can do harm."""


@pytest.mark.parametrize("name", FORGERIES)
def test_claims_that_are_forged_are_refused_and_say_which_file(name: str, trained: Path, tmp_path: Path) -> None:
    forge, says = FORGERIES[name]
    out = tmp_path / "out"
    job = job_of(trained, out, horizon=HORIZONS.get(name, HORIZON))
    shutil.copytree(trained / "out", out, ignore=shutil.ignore_patterns("runs"))
    assert verify(job, source_of(trained), CPU).steps == STEPS
    forge(out)
    with pytest.raises(Refused) as refused:
        verify(job, source_of(trained), CPU)
    assert refused.value.reason is Reason.INVALID_RESULTS
    assert says in str(refused.value)


@pytest.mark.parametrize(
    "train",
    [
        {"horizon": {"unit": "tokens", "value": 128}},
        {"horizon": {"unit": "epochs", "value": 8 / 36}},
        {"horizon": {"unit": "seconds", "value": 1}},
        {"horizon": {"unit": "steps", "value": 9}, "stop_at": 2},
    ],
)
def test_claims_are_held_against_a_horizon_in_any_unit(trained: Path, train: dict[str, object]) -> None:
    assert verify(job_of(trained, trained / "out", **train), source_of(trained), CPU).steps == STEPS


def test_claims_of_fewer_tokens_than_the_horizon_are_refused(trained: Path) -> None:
    job = job_of(trained, trained / "out", horizon={"unit": "tokens", "value": 129})
    with pytest.raises(Refused, match="says 2 steps, 3 were asked for"):
        verify(job, source_of(trained), CPU)


def test_sources_are_read_while_other_threads_parse_too() -> None:
    params = TrainParams.model_validate({"horizon": {"value": 2}, "knobs": {"DEPTH": 1}})
    source, header = (ROOT / "arena/train.py").read_text(), io.BytesIO()
    np.save(header, np.zeros(3))
    until = time.monotonic() + 2.0

    def parse() -> None:
        while time.monotonic() < until:
            asked_source(source, params)

    def load() -> None:
        while time.monotonic() < until:
            np.load(io.BytesIO(header.getvalue()))  # numpy parses the header of a file

    def busy(*_: object) -> None:
        sum(range(2000))

    gc.callbacks.append(busy)  # Python code in a collection is where threads change
    try:
        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(work) for work in (parse, parse, load, load)]:
                done.result()
    finally:
        gc.callbacks.remove(busy)
