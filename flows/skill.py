"""One skill training as a Prefect flow: start, resume, stop. An artifact follows each step.

Refuses to know how a step is made. `python -m flows.skill start` runs it here.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.artifacts import acreate_table_artifact
from prefect.client.schemas.objects import State

from flows import artifacts, loop
from flows.loop import Action, Rows
from ratchet.core.ledger import Ledger

SHOWN = ("step", "epoch", "rollout_hard", "n_patches", "edit_budget", "candidate_gate_score", "action", "best_score")


@flow(name="skill", persist_result=False)
async def skill(action: Action = "start", run: str | None = None) -> State[Any]:
    """`start` a training (one that was interrupted goes on), `resume` the run directory `run` and no other, or `stop`
    the one that runs after its present step. Raises InputError for a run that is not there or does not run."""
    return await loop.act(LOOP, action, run)


def rows_at(folder: Path) -> Rows:
    """The steps so far: of a run's ledger, whose first row is the seed document's, or of a published history."""
    if (published := folder / "history.json").is_file():
        return json.loads(published.read_text(encoding="utf-8"))
    return [row["record"] for row in Ledger(folder / "ledger.jsonl").rows()[1:]]


async def show(rows: Rows, _folder: Path) -> None:
    """The steps as a table artifact, and in one line how many there are and the best score."""
    table = [{name: str(row.get(name, "")) for name in SHOWN} for row in rows]
    said = f"{len(rows)} steps, best validation {rows[-1]['best_score']:.3f}, last: {rows[-1]['action']}"
    await artifacts.shown(acreate_table_artifact(table, key="skill-training", description=said))


LOOP = loop.Loop("skill", "training", "step", "summary.json", rows_at, show)

if __name__ == "__main__":
    sys.exit(loop.main(LOOP, skill))
