"""Who proposes candidates: a search, a language model, a coding agent's command line, or an earlier session.

Each is a `Proposer` of one file; `make` picks the one that the parameters name.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from ratchet.loops.research.proposers.command import Command, CommandParams
from ratchet.loops.research.proposers.llm import Llm, LlmParams
from ratchet.loops.research.proposers.replay import Replay, ReplayParams
from ratchet.loops.research.proposers.search import Search, SearchParams
from ratchet.loops.research.records import Proposer
from ratchet.sandbox.job import Sandbox


class Kind(StrEnum):
    """The names that `iterate.proposer` may have."""

    SEARCH = "search"
    LLM = "llm"
    COMMAND = "command"
    REPLAY = "replay"


class Sections(Protocol):
    """The sections of `iterate` that configure proposers; each is read only for the proposer that is used."""

    @property
    def search(self) -> SearchParams: ...

    @property
    def llm(self) -> LlmParams: ...

    @property
    def command(self) -> CommandParams: ...

    @property
    def replay(self) -> ReplayParams: ...


def make(kind: Kind | str, sections: Sections, sandbox: Sandbox | None = None) -> Proposer:
    """The proposer `kind`, configured by its section. `sandbox`: where a command that needs no network runs.

    Raises InputError when the section lacks what that proposer needs.
    """
    match Kind(kind):
        case Kind.SEARCH:
            return Search(sections.search)
        case Kind.LLM:
            return Llm(sections.llm)
        case Kind.COMMAND:
            return Command(sections.command, sandbox)
        case Kind.REPLAY:
            return Replay(sections.replay)
