"""What a training leaves behind, looked at from outside: nothing in it is believed that can be counted here.

The candidate's code ran in the process that wrote these files, so each is a claim of its. Files must be plain ones, the
model must be of the source and the spec that were asked for, parameters are counted, steps and tokens must be those of
the horizon. Refuses to run anything of the candidate's and to know scores: what is left unchecked is in docs/judge.md.
"""

from __future__ import annotations

import gc
import json
import math
import os
import stat
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from ratchet.data.packing import PackedSplit
from ratchet.train.arena import with_knobs
from ratchet.train.device import Device, resolve_dtype
from ratchet.train.horizon import steps_of
from ratchet.train.job import ExperimentJob
from ratchet.train.parameters import TrainParams
from ratchet.train.refusal import Reason, Refused

_PARSING = threading.Lock()
MODEL_FILES = ("arena.py", "model.safetensors", "spec.json")
MAX_TEXT_BYTES = 256 * 1024 * 1024
"""Of a history, 100 bytes a step: more is no table that anybody asked for."""
LARGEST = 2**53
"""No honest number is larger. Beyond it floats overflow in time, and integers of any length fill the memory."""


@dataclass(frozen=True)
class Facts:
    """Of a model's file, read here: `params_m` millions of parameters, `size_mb` MiB."""

    params_m: float
    size_mb: float


@dataclass(frozen=True)
class Claims:
    """What a training did. `params_m` is counted; `steps` and `tokens` fit the horizon; `seconds` is what the process
    says, at least what a watch outside saw; `memory_gb` is what it says. `curve`: (step, loss), as it says."""

    steps: int
    tokens: int
    params_m: float
    seconds: float
    memory_gb: float
    curve: tuple[tuple[int, float], ...]


def verify(job: ExperimentJob, source: str, device: Device, seconds: float = 0.0) -> Claims:
    """The outputs of `job`, checked against what was asked: `source` is the arena's text as the caller knows it (the
    file may have been changed since), `seconds` the time measured outside. Raises Refused, Reason.INVALID_RESULTS."""
    params = TrainParams.model_validate(dict(job.params))
    split, out = PackedSplit.load(job.rows), job.outputs
    asked = asked_source(source, params)
    facts = verify_model(out.model, asked, expected_spec(params, split, device))
    if not _is(out.timing, stat.S_ISDIR):
        raise _invalid(out.timing, "is missing or no folder")
    metrics, clock = _object(out.metrics), _object(out.timing / "summary.json")
    steps = _count(metrics, "steps", out.metrics)
    tokens, each = _count(metrics, "tokens", out.metrics), _count(metrics, "tokens_per_step", out.metrics)
    planned = _planned(params, each, split)
    if planned is not None and steps != planned:
        raise _invalid(out.metrics, f"says {steps} steps, {planned} were asked for")
    if tokens != steps * each:
        raise _invalid(out.metrics, f"says {tokens} tokens, {steps} steps of {each} are {steps * each}")
    return Claims(
        steps=steps,
        tokens=tokens,
        params_m=facts.params_m,
        seconds=max(seconds, _size(clock, "total_seconds", out.timing)),
        memory_gb=_size(clock, "peak_vram_mb", out.timing) / 1024,
        curve=_curve(out.history, steps),
    )


def verify_model(folder: Path, source: str, spec: Mapping[str, Any]) -> Facts:
    """Count the parameters of the model in `folder`, once it is known to be of `source` and `spec`.

    Raises Refused, Reason.INVALID_RESULTS: another arena.py, another spec.json, a link, a pipe, no safetensors.
    """
    if not _is(folder, stat.S_ISDIR):
        raise _invalid(folder, "is missing or no folder")
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise _invalid(folder, f"cannot be read ({error.strerror})") from None
    if names != sorted(MODEL_FILES):
        raise _invalid(folder, f"holds {', '.join(names) or 'nothing'}, not {', '.join(MODEL_FILES)}")
    if read_plain(folder / "arena.py") != source.encode():
        raise _invalid(folder / "arena.py", "is not the source that was to be trained")
    if _object(folder / "spec.json") != dict(spec):
        raise _invalid(folder / "spec.json", f"is not the spec that was asked for, {json.dumps(dict(spec))}")
    return _facts(folder / "model.safetensors")


def asked_source(source: str, params: TrainParams) -> str:
    """The text of the arena.py that a training of `source` publishes: read as text, its knobs set.

    In one go: in CPython 3.11 a collection of garbage in the middle of a parse lets other threads run, and one that
    parses too (np.load does) then ends either with SystemError, "AST constructor recursion depth mismatch".
    """
    text = source.replace("\r\n", "\n").replace("\r", "\n")
    with _PARSING:
        collecting = gc.isenabled()
        gc.disable()
        try:
            return with_knobs(text, params.knobs, "arena") if params.knobs else text
        finally:
            if collecting:
                gc.enable()


def expected_spec(params: TrainParams, split: PackedSplit, device: Device) -> dict[str, Any]:
    """What spec.json must say of a model trained with `params` on `split` by `device`."""
    return {
        "vocab_size": split.vocab_size,
        "sequence_len": split.sequence_len,
        "dtype": resolve_dtype(params.dtype, device),
        "compile": params.compile,
        "seed": params.seed,
    }


def read_plain(path: Path) -> bytes:
    """The bytes of a plain file that a candidate wrote. Raises Refused for a link, a pipe, a device, a giant, nothing.

    Opened without following a link and without waiting for a pipe's other end, then looked at: no time in between.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise _invalid(path, f"is no file that can be read ({os.strerror(error.errno or 0)})") from None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise _invalid(path, "is no plain file")
        if status.st_size > MAX_TEXT_BYTES:
            raise _invalid(path, f"has {status.st_size:,} bytes")
        return file.read(MAX_TEXT_BYTES)


def _facts(path: Path) -> Facts:
    if not _is(path, stat.S_ISREG) or path.lstat().st_nlink != 1:
        raise _invalid(path, "is no plain file")
    try:
        with safe_open(path, framework="numpy") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118  (no mapping)
    except (SafetensorError, OSError) as error:
        raise _invalid(path, f"is no safetensors file ({error})") from None
    strays = [name for name in shapes if not name.startswith("model.")]
    if strays or not shapes:
        raise _invalid(path, f"holds {strays[0]!r}" if strays else "holds no tensor")
    return Facts(sum(math.prod(shape) for shape in shapes.values()) / 1e6, path.lstat().st_size / 2**20)


def _is(path: Path, kind: Any) -> bool:
    try:
        return kind(path.lstat().st_mode)
    except OSError:
        return False


def _planned(params: TrainParams, tokens_per_step: int, split: PackedSplit) -> int | None:
    """Steps to the end of the training; None for a horizon in seconds, which the process itself has calibrated."""
    rows = max(1, tokens_per_step // split.sequence_len)
    steps = steps_of(
        params.horizon, tokens_per_step=tokens_per_step or 1, rows_per_step=rows, rows_per_epoch=len(split.rows)
    )
    return steps if params.stop_at is None or steps is None else params.stop_at


def _curve(path: Path, steps: int) -> tuple[tuple[int, float], ...]:
    """(step, loss) of every row of history.tsv, which must be the steps 1 to `steps`."""
    try:
        header, *lines = read_plain(path).decode().splitlines()
        step, loss = map(header.split("\t").index, ("step", "loss"))
        curve = tuple((int(cells[step]), float(cells[loss])) for cells in (line.split("\t") for line in lines))
    except (ValueError, IndexError) as error:
        raise _invalid(path, f"is no history ({error})") from None
    if len(curve) != steps or any(number != place for place, (number, _) in enumerate(curve, 1)):
        raise _invalid(path, f"has {len(curve)} rows, not the steps 1 to {steps}")
    return curve


def _object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_plain(path))
    except (ValueError, RecursionError) as error:
        raise _invalid(path, f"is no JSON ({error})") from None
    if not isinstance(value, dict):
        raise _invalid(path, "is no JSON object")
    return value


def _count(values: Mapping[str, Any], name: str, where: Path) -> int:
    value = values.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= LARGEST:
        raise _invalid(where, f"says {name} = {value!r}")
    return value


def _size(values: Mapping[str, Any], name: str, where: Path) -> float:
    value = values.get(name)
    if not isinstance(value, int | float) or not 0 <= value <= LARGEST:
        raise _invalid(where, f"says {name} = {value!r}")
    return float(value)


def _invalid(path: Path, what: str) -> Refused:
    return Refused(Reason.INVALID_RESULTS, f"{path.name} {what}", "leave results to the trainer")
