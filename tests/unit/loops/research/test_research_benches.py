"""The benches of the research loop: their proposals are what they say, whatever was kept before."""

from __future__ import annotations

import re
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

from ratchet.loops.research.executor import Experiment, Result, Worker
from ratchet.loops.research.guard import arena_sha
from toy_session import ARENA, fake_laboratory, request, settings, toy_repository

ROOT = Path(__file__).resolve().parents[4]
COMMITTED = (ROOT / "arena/train.py").read_text(encoding="utf-8")


def bench(name: str) -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "bench" / name))


def lucky(job: Experiment, worker: Worker) -> Result:
    """Weight draw 1001 gains by chance, what follows does not."""
    width = 6 if "1001" in job.source else 4
    return fake_laboratory(replace(job, source=re.sub(r"WIDTH = \d", f"WIDTH = {width}", job.source)), worker)


def test_false_keeps_counts_on_from_an_incumbent_that_was_kept_for_nothing(tmp_path: Path) -> None:
    draws = ARENA.replace("    a = 1\n", "    a = 1\n    self.initialise(spec.seed)\n")
    project = toy_repository(tmp_path / "project", draws)
    told = bench("false_keeps.py")["counted"](request(project, experiments=3), settings(project), lucky)
    assert told == {"trials": 3, "kept": 1, "lower_wins_would_keep": 1}


def test_false_keeps_finds_where_the_committed_arena_draws_its_weights() -> None:
    assert len(bench("false_keeps.py")["DRAWS"].findall(COMMITTED)) == 1


def test_research_overhead_each_change_differs_from_the_arena_and_from_the_others() -> None:
    changed = bench("research_overhead.py")["changed"]
    sources = [COMMITTED, *(changed(COMMITTED, place) for place in range(12))]
    assert len({arena_sha(source) for source in sources}) == 13
    assert changed(sources[5], 7) == sources[8]
