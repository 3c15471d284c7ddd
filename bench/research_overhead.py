"""What a research session costs beside training and judging, per experiment, at toy size.

`python bench/research_overhead.py [EXPERIMENTS]`: runs a real session (toy model, process sandbox) and adds up, per
experiment: the whole round, the time inside training (as the training's own clock says, without its start-up), the
time inside the judge (from the first question to the last answer). The rest is overhead: start-up of processes, git,
proposing, the ledger, the comparison.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests/support")]


def changed(source: str, place: int) -> str:
    """`source` with a beta that no other place and not the arena has."""
    return re.sub(r"(?m)^ADAM_BETAS = .*", f"ADAM_BETAS = (0.8, {0.94 - place / 10_000:.4f})", source)


def main() -> None:
    """Print one JSON object: seconds per experiment."""
    from real_session import REAL, real_project
    from toy_session import Scripted, session

    count = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    marks: list[tuple[str, float]] = []

    class Clock:
        def __getattr__(self, name: str):
            return lambda *_: marks.append((name, time.monotonic()))

    with tempfile.TemporaryDirectory() as folder:
        project = real_project(Path(folder) / "project")
        os.chdir(project)
        script = [
            (f"another beta, {place}", lambda question, place=place: changed(question.source, place))
            for place in range(count)
        ]
        session(project, Scripted(script), laboratory=None, experiments=count, listeners=[Clock()], **REAL)
        work = next((project / "runs/iterate").glob("*/work"))
        clocks = [json.loads(path.read_text()) for path in work.glob("*/trained/timing/summary.json")]
    first = next(place for place, (name, _) in enumerate(marks) if name == "proposing")
    last = max(place for place, (name, _) in enumerate(marks) if name == "decided")  # the test split comes after it
    trained, judged = ([at for name, at in marks[first:last] if name == wanted] for wanted in ("trained", "judged"))
    whole = (marks[last][1] - marks[first][1]) / count
    judging = sum(end - begin for begin, end in zip(trained, judged, strict=True)) / count
    training = sum(clock["training_seconds"] for clock in clocks) / len(clocks)
    starting = sum(clock["total_seconds"] - clock["training_seconds"] for clock in clocks) / len(clocks)
    told = {"experiments": count, "whole_s": whole, "training_s": training, "judging_s": judging,
            "overhead_s": whole - training - judging, "of_it_inside_the_training_process_s": starting}  # fmt: skip
    print(json.dumps(told, indent=2))


if __name__ == "__main__":
    main()
