"""How long the ledger of a long session takes to read: 100,000 rows with the published five columns.

    python bench/ledgers.py [--rows 100000]

CPU seconds of this process, the median of three readings.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

from ratchet.tables import ledgers
from results import keep


def write(path: Path, rows: int) -> None:
    """A ledger in which every ninth experiment was kept."""
    lines = [f"{at:07x}\t{1 - at / 1e6:.6f}\t44.0\t{'discard' if at % 9 else 'keep'}\ttry {at}" for at in range(rows)]
    path.write_text("commit\tval_bpb\tmemory_gb\tstatus\tdescription\n" + "\n".join(lines) + "\n", encoding="utf-8")


def seconds(path: Path) -> float:
    """CPU seconds of reading it once."""
    began = time.process_time()
    ledgers.read(path)
    return time.process_time() - began


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.tsv"
        write(path, rows)
        keep("ledgers", {"rows": rows, "cpu_seconds": round(median(seconds(path) for _ in range(3)), 3)})


if __name__ == "__main__":
    main()
