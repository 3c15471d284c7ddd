"""Proposes what an earlier session proposed, in its order: the exact way to run one again.

Reads the session's results folder alone. Refuses to know who proposed the first time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

from ratchet.core.errors import InputError
from ratchet.loops.research.records import Exhausted, NoProposal, Proposal, Question
from ratchet.params import Params
from ratchet.tables import results


class ReplayParams(Params):
    """`iterate.replay`: an earlier session done again."""

    session: str | None = Field(None, description="its results folder (data/iterate of that session)")


class Replay:
    """A proposer from `session`. `name` is that of whoever made the proposal that was last asked for."""

    def __init__(self, params: ReplayParams) -> None:
        if params.session is None:
            raise InputError("iterate.replay.session", "no session is named", "name its results folder")
        self.name = "replay"
        self._folder = Path(params.session)
        table = results.read(self._folder / "results.tsv")
        self._rows: list[dict[str, Any]] = table.where(table.notna(), None).to_dict("records")  # pyright: ignore[reportAttributeAccessIssue]

    def propose(self, question: Question) -> Proposal:
        """The proposal of the same number. Raises NoProposal where there was none, Exhausted after the last."""
        number = len(question.trials) + question.slot
        if number >= len(self._rows):
            what = f"the session had {len(self._rows) - 1} experiments, all are replayed"
            raise Exhausted(self._folder, what, "stop here, or go on with another proposer under a new tag")
        row = self._rows[number]
        self.name = str(row["proposer"])
        path = self._folder / "experiments" / str(number) / "train.py"
        if path.is_file():
            return Proposal(path.read_bytes().decode(), str(row["description"]), self.name)
        if row["commit"]:
            raise InputError(path, "no such file", "restore the session's folder: `dvc checkout` or `dvc pull`")
        raise NoProposal(self._folder, str(row["reason"]), "go on")
