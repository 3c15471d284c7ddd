"""Asking the proposer for a round's candidates, and keeping each answer durably before it is used.

An answer that was paid for is never asked for again: a killed round finds it in its file. Refuses to know how answers
are made and whether they are any good.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ratchet.core import atomic
from ratchet.core.seeds import derive
from ratchet.loops.research.events import Events
from ratchet.loops.research.program import Program
from ratchet.loops.research.records import Cost, Exhausted, NoProposal, Proposal, Proposer, Question, Trial
from ratchet.loops.research.state import State
from ratchet.loops.research.worktree import Branch
from ratchet.tables.results import one_line

DESCRIPTION_LETTERS = 200


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came of asking once. `source` "": nothing; `refused` then says why, or why the source is not tried."""

    source: str
    description: str
    proposer: str
    cost: Cost = field(default_factory=Cost)
    refused: str = ""
    was_fix: bool = False

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Answer:
        """Back from its file."""
        return cls(**{**told, "cost": Cost(**told["cost"])})


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One round's situation. `incumbent`: its text; `commits`: full hashes by the abbreviated ones of the trials."""

    seq: int
    slots: int
    state: State
    trials: tuple[Trial, ...]
    incumbent: str
    commits: Mapping[str, str]
    left: Mapping[str, float]


class Proposing:
    """One session's questions. `folder`: where answers are kept and the proposer has its own storage."""

    def __init__(
        self, proposer: Proposer, folder: Path, branch: Branch, arena: str, program: Program, seed: int, events: Events
    ) -> None:
        self.proposer, self.folder, self.branch, self.arena = proposer, folder, branch, arena
        self.program, self.seed, self.events = program, seed, events
        self.exhausted = ""
        """Why the proposer, asked in this process, has no further candidate; "" while it may."""

    def kept(self, number: int) -> Answer:
        """The answer that became experiment `number`."""
        return Answer.of(json.loads(self._file(number).read_text(encoding="utf-8")))

    def ask(self, asked: Asked) -> list[Answer]:
        """The answers of a round, at most one a slot; none when the proposer is exhausted."""
        answers: list[Answer] = []
        for slot in range(asked.slots):
            number = asked.state.number + slot
            if not self._file(number).is_file():
                answer = self._answer(number, self._question(asked, slot, answers))
                if answer is None:
                    break
                atomic.write_json(self._file(number), asdict(answer))
            answers.append(self.kept(number))
        return answers

    def _file(self, number: int) -> Path:
        return self.folder / f"{number}.json"

    def _question(self, asked: Asked, slot: int, before: list[Answer]) -> Question:
        state, storage = asked.state, self.folder / "storage"
        storage.mkdir(parents=True, exist_ok=True)
        return Question(
            seq=asked.seq, slot=slot, seed=derive(self.seed, "propose", asked.seq, slot), program=self.program,
            source=asked.incumbent, commit=state.best.commit, val_bpb=state.best.score, trials=asked.trials,
            source_of=lambda commit: self._source(asked.commits.get(commit, commit)), folder=storage,
            pending=tuple(
                Proposal(answer.source, answer.description, answer.proposer, answer.cost)
                for answer in before if answer.source
            ),
            curve=state.curve, said=state.said, failure=state.failures.get(slot), left=asked.left,
        )  # fmt: skip

    def _source(self, commit: str) -> str:
        return self.branch.repository.source(commit, self.arena)

    def _answer(self, number: int, question: Question) -> Answer | None:
        """Ask once. Raises InfrastructureError as the proposer does; None when there is nothing more to come."""
        self.events.proposing(number)
        was_fix = question.failure is not None
        try:
            proposal = self.proposer.propose(question)
        except Exhausted as error:
            self.exhausted = one_line(error.what) or "the proposer has no further candidate"
            return None
        except NoProposal as error:
            said = one_line(error.what)
            return Answer(
                source="", description="no proposal", proposer=self.proposer.name, cost=error.cost, refused=said,
                was_fix=was_fix,
            )  # fmt: skip
        finally:
            ours = f"{self.branch.repository.prefix}{self.arena}"
            outside = [name for name in self.branch.reset(question.commit) if name != ours]
        refused = ""
        if outside:
            more = f" and {len(outside) - 3} more" if len(outside) > 3 else ""
            refused = one_line(f"refused: changes {', '.join(outside[:3])}{more}, outside {self.arena}")
        try:
            proposal.source.encode()
        except UnicodeEncodeError:
            proposal, refused = (
                Proposal("", proposal.description, proposal.proposer, proposal.cost),
                "refused: no UTF-8",
            )
        return Answer(
            source=proposal.source, description=_short(proposal.description), proposer=one_line(proposal.proposer),
            cost=proposal.cost, refused=refused, was_fix=was_fix,
        )  # fmt: skip


def _short(description: str) -> str:
    line = one_line(description) or "no description"
    return line if len(line) <= DESCRIPTION_LETTERS else line[: DESCRIPTION_LETTERS - 1] + "…"
