"""One research session as a Prefect flow: start, resume, stop. Artifacts follow each experiment.

Refuses to know how a session decides. `python -m flows.research start` runs it here.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
from prefect import flow
from prefect.artifacts import acreate_table_artifact
from prefect.client.schemas.objects import State

from flows import artifacts, loop
from flows.loop import Action, Rows

SHOWN = ("commit", "val_bpb", "status", "description", "delta", "reason", "cost")


@flow(name="research", persist_result=False)
async def research(action: Action = "start", run: str | None = None) -> State[Any]:
    """`start` a session (one that was interrupted goes on), `resume` the run directory `run` and no other, or `stop`
    the one that runs after its present round. Raises InputError for a run that is not there or does not run."""
    return await loop.act(LOOP, action, run)


def rows_at(folder: Path) -> Rows:
    """The rows of results.tsv in `folder`, as texts; none when there is no such file yet."""
    with suppress(OSError, ValueError):
        table = pd.read_csv(folder / "results.tsv", sep="\t", dtype=str, keep_default_na=False, quoting=3)
        return [{name: row[name] for name in SHOWN} for row in table.to_dict("records")]
    return []


async def show(rows: Rows, folder: Path) -> None:
    """The rows as a table artifact, with how many experiments there are and which is the best; the session's course."""
    kept = [row for row in rows if row["status"] == "keep"]
    said = f"{len(rows) - 1} experiments, best val_bpb {kept[-1]['val_bpb'] if kept else 'none'}"
    await artifacts.shown(acreate_table_artifact(rows, key="research-session", description=said))
    await artifacts.show_session(folder)


LOOP = loop.Loop("iterate", "session", "round", "learned.md", rows_at, show)

if __name__ == "__main__":
    sys.exit(loop.main(LOOP, research))
