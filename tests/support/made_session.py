"""A made-up research session: realistic rows, no training. Its ledger is written by the table's own writer."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

from ratchet.tables import results

IDEAS = (
    "depth 4 → 6, width kept",
    "matrix_lr 0.04 → 0.06",
    "SwiGLU in place of ReLU²",
    "halve the batch, double the steps",
    "no value embeddings",
    "window pattern SSSL",
    "soft cap 15 → 30",
    "RoPE base 10,000 → 50,000",
    "warm-down over the last half",
    "weight decay 0.1 on matrices",
)


def sha(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def rows(experiments: int = 14, *, seed: int = 3, baseline: float = 1.5917, noise: float = 0.0021) -> list[dict]:
    """The rows of a session, the baseline first: every third is kept, every seventh crashes, one is simpler."""
    rng = np.random.default_rng(seed)
    best, parent = baseline, sha("base")[:10]
    made = [_row(0, "", parent, "keep", baseline, "the arena as it stands", "baseline", None, noise)]
    for number in range(1, experiments + 1):
        commit, idea = sha(f"experiment {number}")[:10], IDEAS[(number - 1) % len(IDEAS)]
        if number % 7 == 0:
            reason = "crashed: out of memory, 2048 MB allowed"
            made.append(_row(number, parent, commit, "crash", None, idea, reason, None, noise))
        elif number % 3 == 0:
            gain = float(rng.uniform(4, 12)) * noise
            best -= gain
            reason = f"the gain {gain:.6g} is above the threshold {3 * noise:.6g}"
            made.append(_row(number, parent, commit, "keep", best, idea, reason, gain, noise))
            parent = commit
        elif number == 11:
            made.append(_row(number, parent, commit, "keep", best + 0.0001, idea, "simpler: a tie", -0.0001, noise))
            parent = commit
        else:
            gain = -abs(float(rng.normal(0, 4))) * noise
            reason = f"the gain {gain:.6g} is not above the threshold {3 * noise:.6g}"
            made.append(_row(number, parent, commit, "discard", best - gain, idea, reason, gain, noise))
    return made


def _row(
    number: int,
    parent: str,
    commit: str,
    status: str,
    bpb: float | None,
    idea: str,
    reason: str,
    gain: float | None,
    noise: float,
) -> dict:
    crashed = status == "crash"
    return {
        "commit": commit,
        "val_bpb": bpb,
        "memory_gb": None if crashed else 1.19,
        "status": status,
        "description": idea,
        "parent": parent,
        "arena_sha": sha(idea + commit)[:16],
        "seed": 1,
        "steps": None if crashed else 180,
        "tokens": None if crashed else 737_280,
        "seconds": None if crashed else 301.5 + number,
        "params_m": None if crashed else 11.53,
        "delta": gain,
        "noise": noise,
        "diff_lines": 0 if number == 0 else 2 + number % 5,
        "reason": reason,
        "proposer": "search",
        "isolation": "weak",
        "cost": 0.0 if number == 0 else 0.0125,
    }


def metrics(made: list[dict], *, tag: str = "made", carries_over: bool = True) -> dict:
    """What metrics/iterate.json says of `made`."""
    kept = [row for row in made if row["status"] == "keep"]
    statuses = [row["status"] for row in made[1:]]
    base, best = made[0], kept[-1]
    gain = base["val_bpb"] - best["val_bpb"]
    told = {
        "tag": tag,
        "experiments": len(made) - 1,
        "kept": statuses.count("keep"),
        "discarded": statuses.count("discard"),
        "crashed": statuses.count("crash"),
        "progress": sum(row["status"] == "keep" and (row["delta"] or 0) > 0 for row in made[1:]),
        "base_commit": base["commit"],
        "best_commit": best["commit"],
        "baseline_val_bpb": base["val_bpb"],
        "val_bpb": best["val_bpb"],
        "gain": gain,
        "noise": {"sd": base["noise"], "seeds": 5, "threshold": 3.01 * base["noise"]},
        "isolation": "weak",
        "proposer": "search",
        "ended": "the budget of 14 experiments is used up",
    }
    if len(kept) > 1:
        seen = gain * (0.8 if carries_over else 0.05)
        told["test"] = {
            "baseline_bpb": base["val_bpb"] + 0.01,
            "bpb": base["val_bpb"] + 0.01 - seen,
            "gain": seen,
            "lower": seen - 0.3 * gain,
            "upper": seen + 0.3 * gain,
            "documents": 511,
        }
    return told


def make_session(root: Path, *, made: list[dict] | None = None, carries_over: bool = True) -> Path:
    """Write data/iterate and metrics/iterate.json below `root`; return `root`."""
    made = rows() if made is None else made
    results.write(root / "data/iterate/results.tsv", made)
    (root / "data/iterate/learned.md").write_text(
        "# What session made learned\n\n- Wider helped, deeper did not.\n- Most learning rates made it worse.\n",
        encoding="utf-8",
    )
    (root / "data/iterate/patches").mkdir(exist_ok=True)
    for number, row in enumerate(made):
        if number and row["status"] == "keep":
            patch = (
                f"Subject: {row['description']}\n\n--- a/arena/train.py\n+++ b/arena/train.py\n-DEPTH = 4\n+DEPTH = 6\n"
            )
            (root / f"data/iterate/patches/{number:04d}-change.patch").write_text(patch, encoding="utf-8")
    path = root / "metrics/iterate.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(metrics(made, carries_over=carries_over), indent=2) + "\n", encoding="utf-8")
    return root
