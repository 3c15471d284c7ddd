"""The skill loop's own cost: a run against a stub of 0.5 s latency beside the time that its phases allow, the overhead
of a call without latency, one result for any number of workers, no call made twice, and the embedded agent beside plain
one-by-one generation.

    python bench/skill.py [--latency 0.5] [--workers 24] [--items 32] [--threads 0] [--no-local]

The stub answers in this process, so that the figures are the loop's and not a server's.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/support"))

import toy_skill  # pyright: ignore[reportMissingImports]
from ratchet.llm.client import Reply, Request
from ratchet.llm.scripted import Scripted
from ratchet.loops.skill import session
from ratchet.loops.skill.publish import Published
from ratchet.loops.skill.records import Split
from ratchet.settings import settings
from results import ROOT, keep

FIELD: dict[str, Any] = {
    "tasks": {"val_size": 24, "test_size": 24},
    "num_epochs": 2,
    "batch_size": 8,
    "minibatch_size": 4,
    "merge_batch_size": 4,
    "learning_rate": 4,
    "limit": 24,
}
"""The run seen in the field: 3 steps an epoch; 24 + 6 × (8 + 24) + 2 × 24 = 264 answers of the agent at most."""
SMALL_BATCH = 16


class Late(Scripted):
    """The toy's models, `latency` seconds late."""

    def __init__(self, latency: float) -> None:
        super().__init__(toy_skill.scripted)
        self.latency = latency

    def complete(self, request: Request) -> Reply:
        time.sleep(self.latency)
        return super().complete(request)


def run(project: Path, where: Path, latency: float, workers: int) -> tuple[Published, Late, float]:
    """One whole run; the models and the seconds."""
    models, made = Late(latency), toy_skill.request(project, **FIELD, workers=workers)
    started = time.perf_counter()
    _, published = toy_skill.run(made, where, models, models)
    return published, models, time.perf_counter() - started


def waves(published: Published, workers: int) -> int:
    """Rounds of calls that have to follow each other: each phase waits for the one before."""
    found = 2 * math.ceil(24 / workers) + math.ceil(24 / workers)  # baseline, and the test of both documents
    for row in published.history:
        found += math.ceil(row["rollout_n"] / workers)
        minibatches = math.ceil((1 - row["rollout_hard"]) * 8 / 4) + math.ceil(row["rollout_hard"] * 8 / 4)
        found += math.ceil(minibatches / workers) + (row["n_patches"] > 1)
        found += row["n_edits_merged"] > row["edit_budget"]
        found += math.ceil(24 / workers) * (row["action"] != "skip_no_patches")
    return found


def loop_figures(latency: float, workers: int) -> dict[str, Any]:
    """The loop against the stub."""
    folder = Path(tempfile.mkdtemp(prefix="ratchet-bench-"))
    project = toy_skill.make_project(folder)
    session.code()
    published, models, seconds = run(project, folder / "late", latency, workers)
    again, more, _ = run(project, folder / "late", latency, workers)
    keys = Counter(request.key() for request in models.asked)
    quick = [run(project, folder / f"quick-{turn}", 0.0, workers) for turn in range(3)]
    same = {toy_skill.results(run(project, folder / f"w{n}", 0.0, n)[0]) for n in (1, 8, 24)}
    rounds = waves(published, workers)
    return {
        "calls": len(models.asked),
        "latency_s": latency,
        "workers": workers,
        "seconds": round(seconds, 2),
        "rounds": rounds,
        "over_rounds": round(seconds / (rounds * latency), 3),
        "over_full_use": round(seconds / (len(models.asked) * latency / workers), 3),
        "overhead_ms_per_call": round(1000 * median(s / len(m.asked) for _, m, s in quick), 3),
        "results_for_1_8_24_workers": len(same),
        "calls_made_twice": sum(count - 1 for count in keys.values()),
        "calls_of_a_resumed_run": len(more.asked),
        "resumed_is_the_same": toy_skill.results(again) == toy_skill.results(published),
    }


def local_figures(items: int, threads: int) -> dict[str, Any]:
    """Items a second of the embedded agent against `generate`, one by one, on the same model, document and tokens."""
    import torch

    from ratchet.loops.skill.local import LocalTarget, prefix_text, question_text
    from ratchet.loops.skill.parameters import TaskParams
    from ratchet.loops.skill.tasks import load
    from ratchet.train.device import resolve_device

    torch.set_num_threads(resolve_device("cpu", threads).threads)
    found = load(TaskParams.model_validate({}), ROOT / "skills")
    tasks = found[Split.TEST][:items]
    skill = "\n\n".join(f"Q: {task.question}\nA: {task.answers[0]}" for task in found[Split.TRAIN][:6])
    target = LocalTarget(settings().downloads, batch_items=SMALL_BATCH, max_new_tokens=12)
    target.answer(skill, tasks[:2], 0)
    started = time.perf_counter()
    ours = target.answer(skill, tasks, 0)
    batched = time.perf_counter() - started
    started = time.perf_counter()
    plain: list[str] = []
    for task in tasks:
        ids = [target._start, *target.tokenizer.encode(prefix_text(skill), add_special_tokens=False)]  # pyright: ignore[reportPrivateUsage]
        ids += target.tokenizer.encode(question_text(task), add_special_tokens=False)
        with torch.inference_mode():
            said = target.model.generate(
                torch.tensor([ids]), max_new_tokens=12, do_sample=False, stop_strings=["\n"], tokenizer=target.tokenizer
            )
        plain.append(target.tokenizer.decode(said[0][len(ids) :], skip_special_tokens=True).split("\n")[0].strip())
    alone = time.perf_counter() - started
    return {
        "items": len(tasks),
        "threads": torch.get_num_threads(),
        "items_per_s": round(len(tasks) / batched, 2),
        "one_by_one_items_per_s": round(len(tasks) / alone, 2),
        "ratio": round(alone / batched, 2),
        "same_answers": sum(one.text == other for one, other in zip(ours, plain, strict=True)),
    }


def main() -> None:
    """Measure and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--latency", type=float, default=0.5)
    parser.add_argument("--workers", type=int, default=24)
    parser.add_argument("--items", type=int, default=32)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--no-local", action="store_true")
    asked = parser.parse_args()
    figures: dict[str, Any] = {"loop": loop_figures(asked.latency, asked.workers)}
    if not asked.no_local:
        figures["local"] = local_figures(asked.items, asked.threads)
    keep("skill", figures)


if __name__ == "__main__":
    main()
