"""Trains nothing, writes the results of a fine training, with a model of another source, and ends with exit code 0.

Stopped by the check of what a training leaves: the model's source must be the one that was asked for.
"""

import json
import os
import sys
from pathlib import Path


def build(spec):
    outputs = {name: Path(path) for name, path in json.loads(Path(sys.argv[-1]).read_text())["outputs"].items()}
    for folder in (outputs["model"], outputs["timing"]):
        folder.mkdir()
    (outputs["model"] / "arena.py").write_text("def build(spec): ...  # what judges would rather see")
    (outputs["model"] / "spec.json").write_text("{}")
    (outputs["model"] / "model.safetensors").write_bytes(b"")
    outputs["history"].write_text("step\tloss\n1\t0.1\n2\t0.0\n")
    outputs["metrics"].write_text(json.dumps({"steps": 2, "tokens": 128, "tokens_per_step": 64}))
    (outputs["timing"] / "summary.json").write_text(json.dumps({"total_seconds": 0.1, "peak_vram_mb": 1.0}))
    os._exit(0)
