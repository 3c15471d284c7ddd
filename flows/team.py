"""One team training as a Prefect flow: start, resume, stop. An artifact follows the updates.

Refuses to know how an update is made. `python -m flows.team start` runs it here.
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
from ratchet.loops.team.state import UPDATES_FILE

SHOWN = ("env_step", "epoch", "reward_mean", "eval_reward", "entropy", "grad_norm", "kl", "skipped_updates")
LAST = 50
"""Updates that the table shows: a run has hundreds."""


@flow(name="team", persist_result=False)
async def team(action: Action = "start", run: str | None = None) -> State[Any]:
    """`start` a training (one that was interrupted goes on), `resume` the run directory `run` and no other, or `stop`
    the one that runs after its present update. Raises InputError for a run that is not there or does not run."""
    return await loop.act(LOOP, action, run)


def rows_at(folder: Path) -> Rows:
    """The updates so far: of a run, or of a published history."""
    if (published := folder / "history.json").is_file():
        return json.loads(published.read_text(encoding="utf-8"))
    return Ledger(folder / UPDATES_FILE).rows()


async def show(rows: Rows, _folder: Path) -> None:
    """The newest updates as a table artifact, and in one line how many there are and what they earn."""
    table = [{name: str(row.get(name, "")) for name in SHOWN} for row in rows[-LAST:]]
    said = f"{len(rows)} updates, reward {rows[0]['reward_mean']:.3f} → {rows[-1]['reward_mean']:.3f}"
    await artifacts.shown(acreate_table_artifact(table, key="team-training", description=said))


LOOP = loop.Loop("team", "training", "update", "summary.json", rows_at, show)

if __name__ == "__main__":
    sys.exit(loop.main(LOOP, team))
