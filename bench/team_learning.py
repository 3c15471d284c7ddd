"""Whether the team loop's default learns: the section `team` of params.yaml on three seeds, each with its own split.

`python bench/team_learning.py` trains the default and, as it is, the published length-ratio task: half an hour on 2
cores. For each run: mean reward on held-out prompts before and after, and the rise paired over prompts (95 % interval).
Each task has a file of its own in bench/results/.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import results
from ratchet.loops.team import session as sessions
from ratchet.loops.team.parameters import SECTION, TeamParams
from ratchet.params import load, merge, validate
from ratchet.settings import settings

STORIES = {
    "task": "stories", "max_new_tokens": 24, "stop": None, "num_generations": 4, "rollout_buffer_size": 2,
    "num_train_epochs": 3, "train_items": 32, "eval_interval": 0,
}  # fmt: skip
"""Group and buffer as published; its own lengths are 256 tokens and 1,000 prompts: days on 2 cores."""
FILES = {"helper": "team_learning", "stories": "team_learning_stories"}


def trained(params: TeamParams, runs: Path) -> dict[str, Any]:
    """What one run comes to."""
    here = settings().model_copy(update={"runs": runs, "wandb": "disabled", "resume_run": None})
    start, cpu = time.monotonic(), time.process_time()
    session = sessions.from_params(params, here)
    with sessions.open_session(session, here) as run:
        ending = sessions.Driver(session, run, here).drive()
    assert ending.evaluation is not None
    told = ending.evaluation
    return {
        "seed": params.seed,
        "untrained": round(told["untrained"]["mean"], 4),
        "trained": round(told["trained"]["mean"], 4),
        **{name: round(told["rise"][name], 4) for name in ("mean", "low", "high")},
        "items": told["items"],
        "samples": told["samples"],
        "env_steps": ending.state.env_step,
        "minutes": round((time.monotonic() - start) / 60, 2),
        "cpu_minutes": round((time.process_time() - cpu) / 60, 2),
    }


def main() -> None:
    """Train, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", nargs="+", choices=("helper", "stories"), default=["helper", "stories"])
    asked = parser.parse_args()
    told = load(SECTION, TeamParams).model_dump(mode="json")
    overs = {"helper": [{"seed": seed} for seed in range(asked.seeds)], "stories": [STORIES]}
    wanted = [(task, over) for task in asked.tasks for over in overs[task]]
    found: dict[str, list[dict[str, Any]]] = {}
    for task, over in wanted:
        params = validate(merge(told, over), SECTION, TeamParams)
        with tempfile.TemporaryDirectory() as folder:
            found.setdefault(task, []).append(trained(params, Path(folder)))
        print(task, found[task][-1], file=sys.stderr, flush=True)
    for task, runs in found.items():
        results.keep(FILES[task], {task: runs})


if __name__ == "__main__":
    main()
