"""Tokens per second of the judge, beside a plain evaluation loop and the model's forward pass alone.

    python bench/judge.py [--rows 96] [--rounds 3] [--tolerance]

The model is the default arena (depth 4, 256 wide, context 256, 8,192 ids) with random weights. The three ways run in
turn, in one command on one machine, each in processes of its own:

    judge     everything the stage does but starting the processes, probes included
    plain     one process, default allocator: `logits`, float32, cross_entropy, a table of byte lengths
    forward   one process, the judge's allocator: `logits` alone, all threads. What the judge cannot beat with one
              process; two processes with half the threads each may, since they share no barrier.

`--tolerance` instead measures how far honest answers move when company, place, threads or dtype change.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

import results
from ratchet.data.packing import PackedSplit, Pieces
from ratchet.sandbox.process import ProcessSandbox
from ratchet.train import scoring
from ratchet.train.arena import Experiment, Spec, load_arena
from ratchet.train.device import resolve_device, tune_allocator
from ratchet.train.judge import judge

ROOT = Path(__file__).resolve().parent.parent
VOCAB, LENGTH, BATCH = 8192, 256, 4


def make_model(folder: Path, dtype: str) -> Path:
    """The default arena with random weights whose logits are as lively as those of a trained model."""
    folder.mkdir(parents=True)
    shutil.copyfile(ROOT / "arena/train.py", folder / "arena.py")
    spec = {"vocab_size": VOCAB, "sequence_len": LENGTH, "dtype": dtype, "compile": False, "seed": 1}
    (folder / "spec.json").write_text(json.dumps(spec))
    draw = torch.Generator().manual_seed(0)
    state = build(folder).state_dict()
    weights = {name: value.clone().contiguous() for name, value in state.items() if name.startswith("model.")}
    for name, value in weights.items():
        if name.endswith(("head", "out", "down")):
            scale = 0.25 if name.endswith("head") else value.shape[1] ** -0.5
            value.copy_(torch.randn(value.shape, generator=draw) * scale)
    save_file(weights, folder / "model.safetensors")
    return folder


def build(folder: Path) -> Experiment:
    spec = json.loads((folder / "spec.json").read_text())
    experiment = load_arena(folder / "arena.py").build(Spec(**{**spec, "compile": False}, device="cpu"))
    if (folder / "model.safetensors").exists():
        experiment.load_state_dict(load_file(folder / "model.safetensors"))
    return experiment


def make_rows(rows: int) -> np.ndarray:
    return np.random.default_rng(0).integers(4, VOCAB, (rows, LENGTH + 1)).astype(np.uint16)


def time_judge(folder: Path, rows: int) -> float:
    numbers = np.arange(rows)
    pieces = Pieces(numbers, numbers, np.zeros(rows, np.int64), np.full(rows, LENGTH))
    split = PackedSplit(folder, {"sequence_len": LENGTH, "vocab_size": VOCAB}, make_rows(rows), pieces)
    token_bytes = np.full(VOCAB, 4, np.int32)
    return judge(
        folder, split, token_bytes, device=resolve_device("cpu"), batch_rows=BATCH, sandbox=ProcessSandbox()
    ).tokens_per_s


def time_plain(folder: Path, rows: int) -> float:
    """The evaluation loop that everybody writes, at the arena's own batch of 16 rows."""
    experiment, ids, token_bytes = (
        build(folder),
        torch.from_numpy(make_rows(rows).astype(np.int64)),
        torch.full((VOCAB,), 4),
    )
    torch.set_num_threads(resolve_device("cpu").threads)
    started, nats, size = time.perf_counter(), 0.0, 0
    with torch.no_grad():
        for batch in ids.split(16):
            targets = batch[:, 1:].reshape(-1)
            logits = experiment.logits(batch[:, :-1]).float().view(-1, VOCAB)
            loss = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
            nats += float((loss * (token_bytes[targets] > 0)).sum())
            size += int(token_bytes[targets].sum())
    return rows * LENGTH / (time.perf_counter() - started)


def time_forward(folder: Path, rows: int) -> float:
    tune_allocator()
    experiment, ids = build(folder), torch.from_numpy(make_rows(rows).astype(np.int64))
    torch.set_num_threads(resolve_device("cpu").threads)
    with torch.inference_mode():
        experiment.logits(ids[:BATCH, :-1])
        started = time.perf_counter()
        for batch in ids.split(BATCH):
            experiment.logits(batch[:, :-1])
    return rows * LENGTH / (time.perf_counter() - started)


WAYS = {"judge": time_judge, "plain": time_plain, "forward": time_forward}


def in_own_process(way: str, folder: Path, rows: int) -> float:
    """One timing in a fresh process: no way inherits another's allocator or warm memory."""
    command = [sys.executable, __file__, "--way", way, "--model", str(folder), "--rows", str(rows)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def figures(rows: int, rounds: int) -> dict[str, Any]:
    """Best of `rounds` for each way, taken in turn."""
    with tempfile.TemporaryDirectory() as temp:
        folder = make_model(Path(temp) / "model", "float32")
        taken: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(rounds):
            for way in WAYS:
                taken[way].append(in_own_process(way, folder, rows))
    best = {way: max(values) for way, values in taken.items()}
    return {
        "rows": rows,
        "rounds": rounds,
        **{f"{way}_tokens_per_s": round(value) for way, value in best.items()},
        "judge_over_plain": round(best["judge"] / best["plain"], 3),
        "judge_over_forward": round(best["judge"] / best["forward"], 3),
    }


def tolerance(rows: int) -> dict[str, Any]:
    """Largest and mean move, in nats of one target, of honest answers: same shape of batch, and one row at a time."""
    found: dict[str, Any] = {}
    ids = torch.from_numpy(make_rows(rows).astype(np.int64))
    other = torch.from_numpy(np.random.default_rng(1).integers(4, VOCAB, (rows, LENGTH)))
    with tempfile.TemporaryDirectory() as temp:
        for dtype in ("float32", "bfloat16"):
            experiment = build(make_model(Path(temp) / dtype, dtype))
            base: dict[int, torch.Tensor] = {}
            for threads in (1, 2):
                torch.set_num_threads(threads)
                base[threads] = score(experiment, ids[:, :-1], ids, BATCH)
                order = torch.randperm(rows, generator=torch.Generator().manual_seed(3))
                moved = torch.empty_like(base[threads])
                moved[order] = score(experiment, ids[order, :-1], ids[order], BATCH)
                cut = LENGTH // 2
                altered = score(experiment, torch.cat([ids[:, :cut], other[:, cut:]], 1), ids, BATCH)
                alone = score(experiment, ids[:, :-1], ids, 1)
                for name, again, end in (
                    ("reordered", moved, LENGTH),
                    ("altered", altered, cut),
                    ("alone", alone, LENGTH),
                ):
                    found[f"{dtype}, {threads} threads, {name}"] = largest(base[threads][:, :end] - again[:, :end])
            found[f"{dtype}, 1 against 2 threads"] = largest(base[1] - base[2])
    return found


def score(experiment: Experiment, inputs: torch.Tensor, ids: torch.Tensor, batch: int) -> torch.Tensor:
    """The judge's nats [rows, T] of the ids' own targets, given `inputs`, asked in batches."""
    parts: list[torch.Tensor] = []
    with torch.inference_mode():
        for first in range(0, len(ids), batch):
            logits = experiment.logits(inputs[first : first + batch]).float().reshape(-1, VOCAB)
            parts.append(scoring.nats(logits, ids[first : first + batch, 1:].reshape(-1)))
    return torch.cat(parts).view(len(ids), -1)


def largest(difference: torch.Tensor) -> dict[str, float]:
    return {
        "max": float(difference.abs().max()),
        "mean_abs": float(difference.abs().mean()),
        "mean": float(difference.mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tolerance", action="store_true")
    parser.add_argument("--way", choices=sorted(WAYS), help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        print(WAYS[options.way](options.model, options.rows))
    elif options.tolerance:
        results.keep("judge_tolerance", tolerance(options.rows))
    else:
        results.keep("judge", figures(options.rows, options.rounds))


if __name__ == "__main__":
    main()
