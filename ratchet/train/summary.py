"""What a training leaves to read: history rows, timing rows, metrics, and the published block of `key: value` lines.

Knows the record's rows and file formats; refuses to know models. Results that a rerun repeats (history, metrics) and
measurements of time and memory (timing) go to different files, so that a rerun changes only the latter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ratchet.core import atomic

HISTORY_COLUMNS = ("step", "tokens", "epoch", "loss", "lr_scale", "grad_norm")
TIMING_COLUMNS = ("step", "seconds", "tokens_per_s", "memory_mb")
FINAL_LOSS_STEPS = 10

Row = Mapping[str, Any]


def step_rows(record: Iterable[Row]) -> list[Row]:
    """The optimizer steps in a run's record (one entry per segment), in order."""
    return [row for entry in record for row in entry["rows"]]


def tsv(rows: Iterable[Row], columns: Sequence[str]) -> str:
    """A tab-separated table with a header; floats at full precision, None as an empty cell."""
    lines = ["\t".join(columns)]
    lines += ["\t".join("" if row[name] is None else repr(row[name]) for name in columns) for row in rows]
    return "\n".join(lines) + "\n"


def write_history(path: Path, rows: Sequence[Row]) -> None:
    """Write history.tsv: one row per optimizer step, nothing of time in it."""
    atomic.write_text(path, tsv(rows, HISTORY_COLUMNS))


def write_timing(folder: Path, rows: Sequence[Row], summary: Mapping[str, float]) -> None:
    """Write the timing folder: steps.tsv and summary.json."""
    with atomic.output_folder(folder) as temp:
        (temp / "steps.tsv").write_text(tsv(rows, TIMING_COLUMNS))
        atomic.write_json(temp / "summary.json", dict(summary))


def metrics(state: Mapping[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    """metrics/train.json: what a rerun repeats. `final_loss` is the mean of the last 10 steps, in nats per token."""
    last = [row["loss"] for row in rows[-FINAL_LOSS_STEPS:]]
    model = state["model"]
    return {
        "steps": state["step"],
        "tokens": state["tokens"],
        "epochs": rows[-1]["epoch"],
        "final_loss": sum(last) / len(last),
        "horizon_steps": state["horizon_steps"],
        "params_m": model["num_params"] / 1e6,
        "depth": model["depth"],
        "tokens_per_step": model["tokens_per_step"],
        "dtype": model["dtype"],
    }


def timing(state: Mapping[str, Any]) -> dict[str, float]:
    """timing/summary.json, summed over the processes that worked on the run: seconds, MiB, tokens/s, percent."""
    clock = state["timing"]
    seconds = clock["training_seconds"]
    rate = state["tokens"] / seconds if seconds else 0.0
    peak = clock["peak_flops"]
    return {
        "training_seconds": seconds,
        "total_seconds": clock["total_seconds"],
        "startup_seconds": clock["startup_seconds"],
        "checkpoint_seconds": clock["checkpoint_seconds"],
        "tokens_per_s": rate,
        "peak_vram_mb": clock["peak_vram_mb"],
        "mfu_percent": 100 * rate * state["model"]["flops_per_token"] / peak if peak else 0.0,
    }


def published_block(val_bpb: float, metric: Mapping[str, Any], clock: Mapping[str, float]) -> str:
    """The block a run of `arena/train.py` ends with: `---`, then one `key: value` a line."""
    lines = {
        "val_bpb": f"{val_bpb:.6f}",
        "training_seconds": f"{clock['training_seconds']:.1f}",
        "total_seconds": f"{clock['total_seconds']:.1f}",
        "peak_vram_mb": f"{clock['peak_vram_mb']:.1f}",
        "mfu_percent": f"{clock['mfu_percent']:.2f}",
        "total_tokens_M": f"{metric['tokens'] / 1e6:.1f}",
        "num_steps": str(metric["steps"]),
        "num_params_M": f"{metric['params_m']:.1f}",
        "depth": str(metric["depth"]),
    }
    width = max(len(key) for key in lines) + 2
    return "\n".join(["---", *(f"{key + ':':<{width}}{value}" for key, value in lines.items())])
