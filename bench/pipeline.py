"""What the pipeline costs when nothing has changed: `ratchet run` beside `dvc repro`, from their start to their end.

Measured in the project, or with `--profile P` in the copy of that profile; it must be up to date, and is only read.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

import results
from ratchet.commands.project import find_copy
from ratchet.core.errors import InputError, RatchetError
from ratchet.dag import read_dag
from ratchet.settings import child_environment

COMMANDS = {
    "ratchet run": ("-m", "ratchet.cli", "run"),
    "ratchet --help": ("-m", "ratchet.cli", "--help"),
    "dvc repro": ("-m", "dvc", "repro"),
}


def main() -> int:
    """Measure, print and keep. Exit code 2 when something would run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", help="measure in the copy of this profile")
    parser.add_argument("--repeats", type=int, default=3, help="times that each command is measured, in turn")
    asked = parser.parse_args()
    try:
        where = find_copy(results.ROOT, asked.profile, ())
        figures = measure(where, asked.repeats)
    except RatchetError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    results.keep("pipeline", {"where": asked.profile or "project", **figures})
    return 0


def measure(where: Path, repeats: int) -> dict[str, object]:
    """Seconds of each command in `where`, and the ratio. Raises InputError when it is not up to date."""
    dag = read_dag(where)
    stale = dag.stale(dag.nodes)
    if stale:
        raise InputError(where, f"not up to date: {', '.join(stale)}", "type `ratchet run` first, then measure")
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(repeats):
        for name, arguments in COMMANDS.items():
            seconds[name].append(once(where, *arguments))
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    return {
        "stages": len(dag.nodes),
        "repeats": repeats,
        "seconds": {name: [round(value, 3) for value in times] for name, times in seconds.items()},
        "median_seconds": {name: round(value, 3) for name, value in medians.items()},
        "run_over_repro": round(medians["ratchet run"] / medians["dvc repro"], 3),
    }


def once(where: Path, *arguments: str) -> float:
    """Seconds that one command takes in `where`. Raises CalledProcessError when it fails."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], cwd=where, env=child_environment(), check=True, capture_output=True)
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
