"""What a run will ask, before a cent is spent: calls, tokens, money, time; and one task through every phase.

An estimate, and said to be one: it assumes that every rollout fails half of its tasks. Refuses to train.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ratchet.loops.skill.aggregate import merge_calls
from ratchet.loops.skill.models import ANALYST
from ratchet.loops.skill.parameters import Role
from ratchet.loops.skill.records import Edit, Kind, Memory, Op, Pair, Patch, Task
from ratchet.loops.skill.rollout import rollout
from ratchet.loops.skill.session import Players, Request, setup
from ratchet.loops.skill.step import Setup
from ratchet.loops.skill.update import update

LETTERS_PER_TOKEN = 4
GROWTH_LETTERS = 120
"""What one edit adds to the document, on the average."""
CALL_S = 1.0
"""Seconds of one call."""
ITEM_S = 0.3
"""Seconds of one answer of the embedded agent."""


@dataclass(frozen=True)
class Forecast:
    """Calls and tokens by role, for the whole run."""

    target_calls: int
    target_tokens: int
    optimizer_calls: int
    optimizer_tokens: int
    money: float
    seconds: float
    lines: tuple[str, ...]


def forecast(request: Request) -> Forecast:
    """The forecast of a run."""
    p, horizon = request.params, request.horizon
    if not horizon.train_size:
        return Forecast(0, 0, 0, 0, 0.0, 0.0, ("train_size is 0: everything is checked, nobody is asked",))
    val, test = len(request.val), len(request.test)
    steps, batch = horizon.last, min(horizon.batch, max(1, horizon.train_size))
    slow_epochs = max(0, p.num_epochs + p.extend_epochs - 1) if p.use_slow_update else 0
    target = val + steps * (batch + val) + 2 * test + slow_epochs * (2 * p.slow_update_samples + val)
    reflecting = math.ceil(batch / 2 / p.minibatch_size) * (1 if p.failure_only else 2)
    meta = max(0, p.num_epochs + p.extend_epochs - 2) if p.use_meta_skill else 0
    a_step = reflecting + merge_calls(reflecting, p.merge_batch_size) + 1 + (p.update_mode == "rewrite")
    optimizer = 0 if p.optimizer.embedded else steps * a_step + slow_epochs + meta
    target_tokens = (_prompt_tokens(request) + _reply_tokens(request)) * target
    minibatch_tokens = (len(ANALYST) + _document_letters(request)) // LETTERS_PER_TOKEN + 60 * p.minibatch_size + 300
    optimizer_tokens = optimizer * (minibatch_tokens + min(400, p.optimizer.max_tokens))
    money = _money(p.target, target_tokens, _reply_tokens(request) * target) + _money(
        p.optimizer, optimizer_tokens, optimizer * 400
    )
    agent_s = target * (ITEM_S if p.target.embedded else CALL_S / p.workers)
    seconds = agent_s + steps * (2 + (reflecting > 1) * 2) * CALL_S * (not p.optimizer.embedded)
    lines = (
        f"{horizon.steps_per_epoch} steps an epoch × {p.num_epochs + p.extend_epochs} epochs = {steps} steps; "
        f"{batch} training tasks a step, {val} validation tasks a candidate, {test} test tasks twice",
        f"agent: {target:,} answers, about {target_tokens:,} tokens",
        f"optimizer: {optimizer:,} calls at most, about {optimizer_tokens:,} tokens",
        f"about {money:.2f} money and {seconds:,.0f} s",
    )
    return Forecast(target, target_tokens, optimizer, optimizer_tokens, money, seconds, lines)


def _document_letters(request: Request) -> int:
    """Of the document half way through the run."""
    return len(request.seed_skill) + request.horizon.last * request.params.learning_rate * GROWTH_LETTERS // 2


def _prompt_tokens(request: Request) -> int:
    tasks: list[Task] = [task for split in request.tasks.splits.values() for task in split]
    question = sum(len(task.question) for task in tasks) // max(1, len(tasks))
    return (_document_letters(request) + question) // LETTERS_PER_TOKEN + 10


def _reply_tokens(request: Request) -> int:
    role = request.params.target
    return min(role.max_new_tokens if role.embedded else role.max_tokens, 20)


def _money(role: Role, tokens: int, replies: int) -> float:
    return role.price.money(max(0, tokens - replies), replies)


def one_item(request: Request, who: Players) -> list[str]:
    """One training task through every phase, with a line on each: rollout, reflect, aggregate, select, update, gate
    (one validation task), slow_update, meta_skill. Nothing is trained and nothing kept but the replies."""
    made = setup(request, who)
    made = replace(made, train=made.train[:1], val=made.val[:1])
    memory = Memory(request.seed_skill, edit_budget=request.params.learning_rate)
    return [*_one_step(made, memory), *_epoch_phases(made, memory)]


def _one_step(made: Setup, memory: Memory) -> list[str]:
    rolled = rollout(memory.skill, made.train, made.target, made.score)
    row = rolled.rows[0]
    kind = Kind.SUCCESS if row.hard else Kind.FAILURE
    lines = [f"rollout: {row.question!r} → {row.said[:60]!r} ({'right' if row.hard else row.fail_reason})"]
    patch = made.optimizer.reflect(memory, kind, rolled.rows).value
    lines.append(f"reflect ({kind}): {len(patch.edits)} edits")
    spare = Edit(Op.APPEND, "Answer briefly.", "", "for the dry run")
    edits = patch.edits or (spare,)
    merged = made.optimizer.merge(memory, [Patch(kind, edits), Patch(kind, (spare,))]).value
    lines.append(f"aggregate: {len(merged.edits)} edits out of two patches")
    tight = replace(memory, edit_budget=1)
    places = made.optimizer.rank(tight, [*merged.edits, spare]).value
    lines.append(f"select: place {places[0]} of {len(merged.edits) + 1}")
    candidate = update(memory, edits[: memory.edit_budget], made.params.update_mode, made.optimizer)
    statuses = ", ".join(str(each.status) for each in candidate.applied)
    lines.append(f"update: {statuses}; {len(candidate.text)} letters")
    judged = rollout(candidate.text, made.val, made.target, made.score)
    return [*lines, f"gate: one validation task, {made.gate.values(judged.rows)[0]:.2f} under the candidate"]


def _epoch_phases(made: Setup, memory: Memory) -> list[str]:
    rolled = rollout(memory.skill, made.train, made.target, made.score)
    pairs = [Pair(row, row) for row in rolled.rows]
    guidance = made.optimizer.guide(memory, memory.skill, pairs).value
    lessons = made.optimizer.remember(memory, [{"step": 1, "action": "reject", "edits": []}]).value
    return [f"slow_update: {len(guidance)} letters", f"meta_skill: {len(lessons)} letters"]
