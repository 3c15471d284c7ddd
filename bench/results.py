"""A benchmark's result: printed, and kept in bench/results/ with where it came from."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from ratchet.core import atomic
from ratchet.core.provenance import collect
from ratchet.train.device import resolve_device, resolve_dtype

ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = ("tiktoken", "rustbpe", "pyarrow")
"""What the figures depend on beside the packages that every provenance names."""


def keep(name: str, figures: dict[str, Any]) -> None:
    """Print `figures` as JSON and write them with machine, versions, commit and date to bench/results/`name`.json."""
    path = ROOT / "bench/results" / f"{name}.json"
    provenance = collect(ROOT, exclude=["bench/results"], libraries=_versions())
    script, *given = provenance["argv"]
    if Path(script).resolve().is_relative_to(ROOT):  # where things lie is nobody's business
        script = Path(script).resolve().relative_to(ROOT).as_posix()
    provenance["argv"] = [script, *("ELSEWHERE" if Path(word).is_absolute() else word for word in given)]
    result = {
        "figures": figures,
        "machine": {
            "cpu": _cpu_name(),
            "native_bfloat16": resolve_dtype("auto", resolve_device("cpu", 1)) == "bfloat16",
            "cpus": len(os.sched_getaffinity(0)),
            "load_1min": round(os.getloadavg()[0], 2),
        },
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "provenance": provenance,
    }
    atomic.write_json(path, result)
    print(json.dumps(figures, indent=2, ensure_ascii=False))


def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in LIBRARIES}


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
