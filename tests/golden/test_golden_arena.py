"""A golden loss curve of a tiny arena at full precision: the same machine type and torch give the same floats.

`python tests/golden/test_golden_arena.py` records the curve of this machine in arena_loss.json; do so only after a
change that is meant to move it, and say in the commit why. A machine type without a recorded curve says so in a warning
and is held to within 1e-4 of a recorded one, since other vector units round differently.
"""

from __future__ import annotations

import hashlib
import json
import platform
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from ratchet.train.arena import Spec, load_arena, with_knobs

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).with_name("arena_loss.json")
KNOBS = {"DEPTH": 3, "HEADS": 4, "HEAD_DIM": 8, "QUERIES_PER_KEY": 2, "WINDOW_PATTERN": "SL", "BATCH_ROWS": 4}
VOCAB, CONTEXT, STEPS = 97, 24, 12


def machine() -> str:
    """What decides the last bit on a CPU: vendor (MKL chooses kernels by it), vector set, torch."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(errors="replace").splitlines() if cpuinfo.exists() else []
    vendor = next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "unknown vendor")
    return f"{platform.machine()} {vendor} {torch.backends.cpu.get_cpu_capability()} torch {torch.__version__}"


def curve() -> dict[str, Any]:
    """Losses and gradient norms of 12 steps over a fixed stream of numbers, and the hash of the final state."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.py"
        path.write_text(with_knobs((ROOT / "arena/train.py").read_text(encoding="utf-8"), KNOBS), encoding="utf-8")
        experiment = load_arena(path).build(Spec(VOCAB, CONTEXT, "cpu", "float32", False, 11))
    positions = torch.arange(STEPS * 4 * (CONTEXT + 1)).view(STEPS, 4, CONTEXT + 1)
    rows: list[list[float]] = []
    for step, batch in enumerate((positions * positions // 7) % VOCAB):
        loss = float(experiment.step([batch], step / STEPS))
        rows.append([loss, experiment.metrics()["grad_norm"]])
    digest = hashlib.sha256()
    for name, value in sorted(experiment.state_dict().items()):
        digest.update(name.encode() + value.numpy().tobytes())
    return {"loss_and_grad_norm": rows, "state_sha256": digest.hexdigest()}


@pytest.fixture
def golden() -> dict[str, Any]:
    return json.loads(GOLDEN.read_text())


def test_loss_curve_of_a_tiny_arena_equals_the_golden_one_exactly(golden: dict[str, Any]) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = curve()
    finally:
        torch.set_num_threads(before)
    if machine() in golden:
        assert found == golden[machine()]
        return
    others = ", ".join(golden)
    warnings.warn(f"no golden curve for {machine()!r}; compared within 1e-4 with that of {others}", stacklevel=1)
    for mine, other in zip(found["loss_and_grad_norm"], next(iter(golden.values()))["loss_and_grad_norm"], strict=True):
        assert mine == pytest.approx(other, rel=1e-4)


if __name__ == "__main__":
    torch.set_num_threads(1)
    known = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    GOLDEN.write_text(json.dumps(known | {machine(): curve()}, indent=1, sort_keys=True) + "\n")
    print(f"recorded {machine()} in {GOLDEN}")
