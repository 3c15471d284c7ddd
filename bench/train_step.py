"""Training step of the arena against a plain eager one of the same arithmetic: tokens/s, peak memory, same bits?

    .venv/bin/python bench/train_step.py [--steps 24] [--threads 2] [--dtype auto]

Two child processes take one step each in turn, so that a busy neighbour hits both; the other one sleeps meanwhile. The
ratio is the median over the pairs, and the quartiles say how far it moves. Plain is what one writes first: autograd
through the soft cap and F.cross_entropy, through relu().square(), through the halves of a rotation put together again
and F.rms_norm, Muon in a loop over matrices, glibc's allocator as it comes. Ours is arena/train.py in a process
prepared as the trainer prepares its own. Both use the same model code, initial weights, batches, fused AdamW and
thread count. `cpu_ratio` compares CPU seconds: on a busy machine it is the steadier figure at one thread, while
waiting threads spin in it at two. `auto` is bfloat16 where the processor has it. Kept in
bench/results/train_step_DTYPE.json. Exit code 1 when the bits differ: a ratio is told, not demanded.
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


def plain_experiment(arena: Any, spec: Any) -> Any:
    """The arena's experiment with its loss, activation, rotation and Muon replaced by what autograd and a loop give."""
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

    class PlainRotation:
        @staticmethod
        def apply(x: Any, cos: Any, sin: Any) -> Any:
            (left, right), half = x.chunk(2, dim=-1), x.size(-1) // 2
            cos, sin = cos[..., :half], sin[..., :half]
            return arena.norm(torch.cat((left * cos + right * sin, right * cos - left * sin), dim=-1))

    arena.SoftCappedLoss, arena.SquaredReLU, arena.NormedRotation = PlainLoss, PlainReLU, PlainRotation
    experiment = arena.build(spec)
    experiment.optimizer.muon = PlainMuon(experiment.optimizer.muon.stacks)
    return experiment


def child(which: str, threads: int, dtype: str) -> None:
    """Take one step for each line of standard input and tell its seconds; at the end, peak MiB and the parameters."""
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
    for line in sys.stdin:
        batches = [torch.randint(0, VOCAB, size, generator=generator) for _ in range(experiment.accumulation)]
        start, cpu_start = time.perf_counter(), time.process_time()
        experiment.step(batches, float(line))
        tell({"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu_start})
    digest = hashlib.sha256()
    for name, weight in sorted(experiment.model.named_parameters()):
        digest.update(name.encode() + weight.detach().numpy().tobytes())
    tell({
        "tokens": experiment.accumulation * experiment.batch_rows * CONTEXT,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "sha256": digest.hexdigest(),
    })  # fmt: skip


def tell(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


class Child:
    """One of the two processes, and what its steps took."""

    def __init__(self, which: str, arguments: argparse.Namespace) -> None:
        command = [sys.executable, __file__, "--child", which, "--threads", str(arguments.threads)]
        command += ["--dtype", arguments.dtype]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.steps: list[dict[str, float]] = []

    def step(self, progress: float) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{progress}\n")
        self.process.stdin.flush()
        self.steps.append(self.answer())

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        if line := self.process.stdout.readline():
            return json.loads(line)
        raise RuntimeError(f"a child ended with {self.process.wait()}")

    def end(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.close()
        last = self.answer()
        self.process.wait()
        return last


def compare(arguments: argparse.Namespace) -> dict[str, Any]:
    """Steps in turn, the one who goes first changing each time; figures over all pairs but the first two."""
    plain, ours = (Child(which, arguments) for which in ("plain", "ours"))
    for number in range(arguments.steps):
        for one in (plain, ours) if number % 2 else (ours, plain):
            one.step(number / arguments.steps)
    last = {"plain": plain.end(), "ours": ours.end()}
    pairs = list(zip(plain.steps, ours.steps, strict=True))[2:]
    ratios, cpu_ratios = ([a[clock] / b[clock] for a, b in pairs] for clock in ("seconds", "cpu_seconds"))
    seconds = {"plain": [a["seconds"] for a, _ in pairs], "ours": [b["seconds"] for _, b in pairs]}
    tokens = last["plain"]["tokens"]
    return {
        "dtype": arguments.dtype,
        "threads": arguments.threads,
        "pairs": len(pairs),
        "plain_tokens_per_s": round(tokens / statistics.median(seconds["plain"]), 1),
        "ours_tokens_per_s": round(tokens / statistics.median(seconds["ours"]), 1),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_quartiles": [round(value, 3) for value in statistics.quantiles(ratios, n=4)[::2]],
        "cpu_ratio": round(statistics.median(cpu_ratios), 3),
        "plain_peak_mb": round(last["plain"]["peak_mb"]),
        "ours_peak_mb": round(last["ours"]["peak_mb"]),
        "bit_identical": last["plain"]["sha256"] == last["ours"]["sha256"],
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Print the comparison as JSON; 0 when the bits are the same."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=24, help="steps of each child (the first two are not counted)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto", help="of matrix products")
    parser.add_argument("--child", choices=("plain", "ours"), help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.child:
        child(arguments.child, arguments.threads, arguments.dtype)
        return 0
    if arguments.steps < 4:
        parser.error("--steps: 4 or more, so that two pairs count")
    if arguments.dtype == "auto":
        from ratchet.train.device import resolve_device, resolve_dtype

        arguments.dtype = resolve_dtype("auto", resolve_device("cpu", arguments.threads))
    result = compare(arguments)
    results.keep(f"train_step_{arguments.dtype}", result)
    return 0 if result["bit_identical"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
