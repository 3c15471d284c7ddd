"""What the sealed trainer costs over a bare loop around `experiment.step`, side by side in one process, as a ratio.

Both loops serve the same batches; they take turns in blocks of steps, so that a busy neighbour disturbs both.

    python bench/trainer_overhead.py [--steps 20] [--blocks 5] [--depth 4] [--threads 0]

Prints JSON: seconds per step of each, their ratio, and the share of the time that saving takes at the default interval.
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from ratchet.core import atomic
from ratchet.core.rundir import open_run
from ratchet.data.packing import PackedSplit
from ratchet.train.arena import with_knobs
from ratchet.train.device import resolve_device, resolve_dtype
from ratchet.train.interruption import Interruption
from ratchet.train.parameters import TrainParams
from ratchet.train.plan import Plan
from ratchet.train.progress import Watch
from ratchet.train.trainer import Training
from ratchet.train.training_mirror import TrainingMirror

ROOT = Path(__file__).resolve().parent.parent
VOCAB, SEQUENCE_LEN, ROWS = 8192, 256, 2048


def made_up_split(folder: Path) -> PackedSplit:
    """Random ids in the packed format: the arithmetic of a step does not look at them."""
    rows = np.random.default_rng(0).integers(0, VOCAB, (ROWS, SEQUENCE_LEN + 1), dtype=np.uint16)
    np.save(folder / "rows.npy", rows)
    manifest = {
        "format": "ratchet-pack", "version": 1, "sequence_len": SEQUENCE_LEN, "vocab_size": VOCAB, "rows": ROWS,
        "files": {"rows.npy": (folder / "rows.npy").stat().st_size},
    }  # fmt: skip
    atomic.write_json(folder / "manifest.json", manifest)
    return PackedSplit.load(folder)


def measure(steps: int, blocks: int, depth: int, threads: int) -> dict[str, Any]:
    params = TrainParams.model_validate({"horizon": {"unit": "steps", "value": 10**6}, "stop_at": 10**6})
    device = resolve_device("cpu", threads)
    with tempfile.TemporaryDirectory() as temp, open_run("bench", {}, {}, runs=Path(temp)) as run:
        (Path(temp) / "pack").mkdir()
        plan = Plan(
            params=params, split=made_up_split(Path(temp) / "pack"), device=device,
            source=with_knobs((ROOT / "arena/train.py").read_text(), {"DEPTH": depth}),
            dtype=resolve_dtype("auto", device), mirror=TrainingMirror("disabled", run.path, {}), wandb=None,
            log_interval=1,
        )  # fmt: skip
        with Watch(run.path, interval=1, stream=io.StringIO()) as watch:
            training = Training(plan, run, watch, Interruption())
            outcome = training.step(0, {})
            run.store.commit(1, outcome.state, {})
            state = dict(outcome.state)
            experiment = training._match(1, state)
            loader = training._new_loader(experiment, 0)
            bare, sealed = [], []
            for _ in range(blocks + 1):
                begun = perf_counter()
                for number in range(steps):
                    batches = [loader.next() for _ in range(experiment.accumulation)]
                    experiment.step(batches, number / steps).item()
                bare.append((perf_counter() - begun) / steps)
                begun = perf_counter()
                for _ in range(steps):
                    training._train_step(experiment, state)
                sealed.append((perf_counter() - begun) / steps)
            begun = perf_counter()
            run.store.commit(2, state, training._blobs(experiment, [training._generators]))
            saving = perf_counter() - begun
            loader.close()
            training.close()
    ratios = [one / other for one, other in zip(sealed[1:], bare[1:], strict=True)]
    interval = max(params.checkpoint.every_seconds, saving / 0.02)
    return {
        "bare_step_s": median(bare[1:]), "sealed_step_s": median(sealed[1:]), "sealed_over_bare": median(ratios),
        "save_s": saving, "saving_share": saving / (interval + saving), "params_m": experiment.num_params() / 1e6,
        "threads": device.threads,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--threads", type=int, default=0, help="0 = as many as the cpuset allows")
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.steps, arguments.blocks, arguments.depth, arguments.threads), indent=2))


if __name__ == "__main__":
    main()
