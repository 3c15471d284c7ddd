"""Proposes what a language model answers: edits of the arena in search/replace blocks, repaired once if need be.

Every call is recorded in the question's folder before it is used, so a question asked again costs nothing. Refuses to
know which endpoint answers.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import Field

from ratchet.core import atomic
from ratchet.core.errors import InputError
from ratchet.llm.client import BudgetSpent, Finish, Message, Provider, Reply, Role, Spent
from ratchet.llm.endpoint import WHERE, Endpoint, open_client
from ratchet.llm.recorded import Mode, Recorded
from ratchet.llm.untrusted import one_line
from ratchet.loops.research.proposers import edit_blocks, prompt
from ratchet.loops.research.proposers.edit_blocks import EditError
from ratchet.loops.research.records import Cost, Exhausted, NoProposal, Proposal, Question

RECORD = "calls.jsonl"
SEEDS = 2**31
"""Seeds are below this: endpoints take 32 bits with a sign."""
NO_COST = {"calls": 0, "tokens": 0, "money": 0.0}
PORTABLE = WHERE | {"record", "replay"}
"""Keys of `iterate.llm` that decide where answers come from and what they may cost, not what is asked."""


class LlmParams(Endpoint):
    """`iterate.llm`: a chat model that writes edits."""

    prompt_tokens: int = Field(
        24_000, ge=1000, description="tokens of a question at most, estimated: docs/proposers.md"
    )
    memory_tokens: int = Field(4_000, ge=0, description="of these, at most so many tell of earlier experiments")
    seeded: bool = Field(True, description="send a seed; false for an endpoint that refuses the field")
    record: str | None = Field(None, description="record of an earlier session's calls; its answers are taken free")
    replay: bool = Field(False, description="with record: never ask the endpoint, refuse what is not in the record")


class Llm:
    """A proposer over any chat endpoint. `provider` stands in for the endpoint."""

    name = "llm"

    def __init__(self, params: LlmParams, provider: Provider | None = None) -> None:
        if params.replay and not params.record:
            raise InputError("iterate.llm.replay", "there is no record to replay", "name it in iterate.llm.record")
        self.params, self._provider = params, provider
        self._clients: dict[Path, Recorded] = {}

    def propose(self, question: Question) -> Proposal:
        """The model's edit, applied. Raises NoProposal when neither the reply nor its repair is one, Exhausted when the
        budget of the model is used up, InfrastructureError when the endpoint fails."""
        client = self._client(question.folder)
        messages = prompt.chat(question, self.params.prompt_tokens, self.params.memory_tokens)
        try:
            reply = self._ask(client, question, messages)
            try:
                return self._proposal(question, reply, reply.spent)
            except EditError as refused:
                return self._repaired(client, question, messages, reply, str(refused))
        except BudgetSpent as error:
            raise Exhausted(error.where, error.what, error.do) from None

    def _repaired(
        self, client: Recorded, question: Question, messages: tuple[Message, ...], reply: Reply, why: str
    ) -> Proposal:
        """The answer to having been told, once, what was wrong."""
        again = (
            f"That is no edit of the file: {why}. Answer once more with the description and all blocks; they apply to "
            "the file as it stands above, not to your last answer."
        )
        second = self._ask(
            client, question, (*messages, Message(Role.ASSISTANT, reply.text), Message(Role.USER, again))
        )
        spent = reply.spent + second.spent
        try:
            return self._proposal(question, second, spent)
        except EditError as refused:
            what = f"no edit after one repair: {one_line(str(refused))}"
            raise NoProposal("llm", what, "the loop goes on with the next question", _cost(spent)) from None

    def _ask(self, client: Recorded, question: Question, messages: tuple[Message, ...]) -> Reply:
        seed = question.seed % SEEDS if self.params.seeded else None
        return client.complete(self.params.request(*messages, seed=seed, sample=question.slot))

    def _proposal(self, question: Question, reply: Reply, spent: Spent) -> Proposal:
        """The edit in `reply`. Raises EditError."""
        if reply.finish is Finish.LENGTH:
            raise EditError("the reply was cut off at its token limit; use fewer and smaller blocks")
        edit = edit_blocks.parse(reply.text)
        before = question.failure.source if question.failure else question.source
        after = edit_blocks.apply(before, edit.blocks)
        edit_blocks.check(before, after)
        return Proposal(after, one_line(edit.description) or "no description given", self.name, _cost(spent))

    def _client(self, folder: Path) -> Recorded:
        if folder not in self._clients:
            path = folder / RECORD
            if self.params.record and not path.exists():
                _take(Path(self.params.record), path)
            mode = Mode.REPLAY if self.params.replay else Mode.RECORD
            self._clients[folder] = open_client(self.params, path, mode, self._provider)
        return self._clients[folder]


def _cost(spent: Spent) -> Cost:
    return Cost(spent.calls, spent.tokens, spent.money)


def _take(record: Path, path: Path) -> None:
    """Copy an earlier session's record to `path`; to this session its answers cost nothing. Raises InputError."""
    lines = Recorded(record, mode=Mode.REPLAY).answered  # refuses one that is missing or damaged
    atomic.write_text(path, "".join(json.dumps(line | {"spent": NO_COST}) + "\n" for line in lines))
