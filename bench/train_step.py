"""Training step of the arena against a plain eager one of the same arithmetic: tokens/s, peak memory, same bits?

    .venv/bin/python bench/train_step.py [--steps 4] [--repeats 3] [--threads 2] [--dtype float32]

Each measurement is a fresh child process, plain and ours in turn, so that a busy neighbour hits both. Plain is what one
writes first: autograd through the soft cap and F.cross_entropy, autograd through relu().square(), Muon in a loop over
matrices, glibc's allocator as it comes. Ours is arena/train.py in a process prepared as the trainer prepares its own.
Both use the same model code, initial weights, batches, fused AdamW and thread count. `cpu_ratio` compares CPU seconds:
on a busy machine it is the steadier figure at one thread, while waiting threads spin in it at two. Kept in
bench/results/train_step_DTYPE.json. Exit code 1 if a promise fails.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import results

ROOT = Path(__file__).resolve().parent.parent
VOCAB, CONTEXT = 8192, 256
LEAST_RATIO, MOST_MEMORY_MB = 1.5, 2700


def plain_experiment(arena: Any, spec: Any) -> Any:
    """The arena's experiment with its loss, its activation and its Muon replaced by what autograd and a loop give."""
    import torch
    import torch.nn.functional as F

    class PlainMuon:
        def __init__(self, stacks: dict[str, list[Any]]) -> None:
            self.matrices = [matrix for stack in stacks.values() for matrix in stack]
            self.momentum = [torch.zeros_like(matrix) for matrix in self.matrices]

        @torch.no_grad()
        def step(self, lr: float, momentum: float, weight_decay: float) -> None:
            for weight, smooth in zip(self.matrices, self.momentum, strict=True):
                smooth.lerp_(weight.grad, 1 - momentum)
                update = arena.polar(weight.grad.lerp(smooth, momentum)[None])[0]
                decayed = weight * (update * weight > 0) * weight_decay
                weight -= lr * max(1.0, weight.size(0) / weight.size(1)) ** 0.5 * (update + decayed)

    class PlainLoss:
        @staticmethod
        def apply(x: Any, head: Any, targets: Any, _kernel: Any) -> Any:
            logits = arena.SOFT_CAP * torch.tanh(arena.linear(x, head).float() / arena.SOFT_CAP)
            return F.cross_entropy(logits, targets)

    class PlainReLU:
        @staticmethod
        def apply(x: Any) -> Any:
            return F.relu(x).square()

    arena.SoftCappedLoss, arena.SquaredReLU = PlainLoss, PlainReLU
    experiment = arena.build(spec)
    experiment.optimizer.muon = PlainMuon(experiment.optimizer.muon.stacks)
    return experiment


def measure(which: str, steps: int, threads: int, dtype: str) -> dict[str, Any]:
    """One child's work: `steps` steps; seconds of each, peak MiB, sha256 of the parameters."""
    sys.path.insert(0, str(ROOT))
    import torch

    from ratchet.train.arena import Spec, load_arena
    from ratchet.train.device import tune_allocator

    if which == "ours":
        tune_allocator()
    torch.set_num_threads(threads)
    arena = load_arena(ROOT / "arena/train.py")
    spec = Spec(VOCAB, CONTEXT, "cpu", dtype, False, 1)  # pyright: ignore[reportArgumentType]
    experiment = arena.build(spec) if which == "ours" else plain_experiment(arena, spec)
    generator = torch.Generator().manual_seed(0)
    size = (experiment.batch_rows, CONTEXT + 1)
    seconds: list[float] = []
    cpu_seconds: list[float] = []
    for number in range(steps):
        batches = [torch.randint(0, VOCAB, size, generator=generator) for _ in range(experiment.accumulation)]
        start, cpu_start = time.perf_counter(), time.process_time()
        experiment.step(batches, number / steps)
        seconds.append(time.perf_counter() - start)
        cpu_seconds.append(time.process_time() - cpu_start)
    digest = hashlib.sha256()
    for name, weight in sorted(experiment.model.named_parameters()):
        digest.update(name.encode() + weight.detach().numpy().tobytes())
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "tokens": experiment.accumulation * experiment.batch_rows * CONTEXT,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "sha256": digest.hexdigest(),
    }


def compare(arguments: argparse.Namespace) -> dict[str, Any]:
    """Children in turn, plain then ours; medians over all steps but each child's first."""
    runs: dict[str, list[dict[str, Any]]] = {"plain": [], "ours": []}
    for _ in range(arguments.repeats):
        for which in runs:
            command = [sys.executable, __file__, "--child", which, "--steps", str(arguments.steps)]
            command += ["--threads", str(arguments.threads), "--dtype", arguments.dtype]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            runs[which].append(json.loads(done.stdout))
    median = {
        (which, clock): statistics.median(second for run in done for second in run[clock][1:])
        for which, done in runs.items()
        for clock in ("seconds", "cpu_seconds")
    }
    tokens = runs["plain"][0]["tokens"]
    return {
        "dtype": arguments.dtype,
        "threads": arguments.threads,
        "plain_tokens_per_s": round(tokens / median["plain", "seconds"], 1),
        "ours_tokens_per_s": round(tokens / median["ours", "seconds"], 1),
        "ratio": round(median["plain", "seconds"] / median["ours", "seconds"], 3),
        "cpu_ratio": round(median["plain", "cpu_seconds"] / median["ours", "cpu_seconds"], 3),
        "plain_peak_mb": round(max(run["peak_mb"] for run in runs["plain"])),
        "ours_peak_mb": round(max(run["peak_mb"] for run in runs["ours"])),
        "bit_identical": len({run["sha256"] for done in runs.values() for run in done}) == 1,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Print the comparison as JSON; 0 when ratio, memory and bits keep what issue 2 promises."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4, help="optimizer steps a child makes (the first is not timed)")
    parser.add_argument("--repeats", type=int, default=3, help="children of each kind")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of matrix products")
    parser.add_argument("--child", choices=("plain", "ours"), help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.child:
        print(json.dumps(measure(arguments.child, arguments.steps, arguments.threads, arguments.dtype)))
        return 0
    result = compare(arguments)
    results.keep(f"train_step_{arguments.dtype}", result)
    kept = result["ratio"] >= LEAST_RATIO and result["ours_peak_mb"] <= MOST_MEMORY_MB and result["bit_identical"]
    return 0 if kept else 1


if __name__ == "__main__":
    raise SystemExit(main())
