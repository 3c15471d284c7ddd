"""One training step: the phases in their order, from a state to the next one and its record.

A function of the state, the step's number and seeds derived from names. Refuses to know how a step is kept, and who
agent and optimizer are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ratchet.loops.skill.aggregate import aggregate
from ratchet.loops.skill.clock import Clock
from ratchet.loops.skill.gate import Gate, Verdict, decide
from ratchet.loops.skill.history import PHASES, Made, record
from ratchet.loops.skill.horizon import Horizon, Place
from ratchet.loops.skill.meta_skill import meta_skill
from ratchet.loops.skill.parameters import SkillParams
from ratchet.loops.skill.records import (
    Action,
    Asked,
    EditStatus,
    Kind,
    Memory,
    Optimizer,
    Patch,
    Target,
    Task,
    Usage,
)
from ratchet.loops.skill.reflect import Reflection, minibatches, reflect
from ratchet.loops.skill.rollout import Rollout, Scorer, batch, rollout
from ratchet.loops.skill.schedule import edit_budget
from ratchet.loops.skill.select import select
from ratchet.loops.skill.slow_update import sample_tasks, slow_update
from ratchet.loops.skill.state import State, Version, evaluated, with_rejected
from ratchet.loops.skill.update import Candidate, update

DONE = (EditStatus.APPLIED, EditStatus.REWRITTEN)


@dataclass(frozen=True)
class Setup:
    """What does not change in a run. `train`, `val`: the tasks in their order."""

    params: SkillParams
    horizon: Horizon
    train: Sequence[Task]
    val: Sequence[Task]
    target: Target
    optimizer: Optimizer
    score: Scorer

    @property
    def gate(self) -> Gate:
        """The gate that the parameters name."""
        p = self.params
        return Gate(p.gate, p.gate_metric, p.gate_mixed_weight, p.gate_confidence, p.seed)


@dataclass(frozen=True)
class Stepped:
    """The next state, the step's record and its edits with their status, and what it took."""

    state: State
    record: dict[str, Any]
    edits: list[dict[str, Any]]
    used: Usage


def baseline(setup: Setup, state: State) -> Stepped:
    """Evaluate the seed document on the validation tasks: the line that every step is held against."""
    clock = Clock()
    rolled = rollout(state.current.text, setup.val, setup.target, setup.score)
    values, scores = setup.gate.values(rolled.rows), rolled.scores
    version = evaluated(state.current.text, state.current.origin, 0, values, scores)
    after = replace(state, current=version, best=version, baseline=scores, rollout=state.rollout + rolled.usage)
    kept = {
        "step": 0,
        "action": str(Action.BASELINE),
        "scores": scores.public(),
        "gate_score": version.score,
        "wall_time_s": clock.total(),
    }
    return Stepped(after, kept, [], rolled.usage)


def train_step(setup: Setup, state: State, history: Sequence[Mapping[str, Any]]) -> Stepped:
    """The step after `state`. `history`: the published records of the steps before it, time left out.

    Raises InfrastructureError when agent or optimizer fails for good; nothing of the step counts then.
    """
    place, clock = setup.horizon.place(state.step + 1), Clock()
    state, lessons = _begin_epoch(setup, state, place, history)
    memory = _memory(setup, state, place)
    with clock.phase("rollout"):
        rolled = rollout(memory.skill, _tasks(setup, place), setup.target, setup.score, _sample(setup, place))
    made = _propose(setup, state, place, memory, rolled, clock)
    after, slow, (analyst, agent) = _end_epoch(setup, _decided(setup, state, made), place)
    made = replace(made, slow=slow, analyst=made.analyst + lessons + analyst, rollout=made.rollout + agent)
    after = replace(after, analyst=state.analyst + made.analyst, rollout=state.rollout + made.rollout)
    kept = record(made, after, setup.gate, clock.timing(PHASES), clock.total())
    edits = [{"step": place.step, **each.public()} for each in made.candidate.applied]
    return Stepped(after, kept, edits, made.analyst + made.rollout)


def _tasks(setup: Setup, place: Place) -> list[Task]:
    p = setup.params
    return batch(setup.train, p.seed, place.epoch, place.step_in_epoch, p.batch_size * p.accumulation)


def _sample(setup: Setup, place: Place) -> int:
    """A greedy agent says the same again: its kept replies serve every epoch."""
    return 0 if setup.params.target.temperature == 0 else place.epoch


def _memory(setup: Setup, state: State, place: Place) -> Memory:
    p = setup.params
    budget = edit_budget(
        p.lr_scheduler, place.step, setup.horizon.steps, highest=p.learning_rate, lowest=p.min_learning_rate
    )
    rejected = state.rejected if p.use_rejected_edits else ()
    return Memory(state.current.text, rejected, state.meta_skill, budget)


def _begin_epoch(setup: Setup, state: State, place: Place, history: Sequence[Mapping[str, Any]]) -> tuple[State, Usage]:
    """At an epoch's first step the rejected edits are forgotten, and the lessons of the epoch before are drawn."""
    if place.step_in_epoch > 1:
        return state, Usage()
    fresh = replace(state, rejected=(), epoch_skill=state.current.text)
    if not setup.params.use_meta_skill:
        return fresh, Usage()
    learnt = meta_skill(_memory(setup, state, place), place.epoch, history, setup.optimizer)
    return replace(fresh, meta_skill=learnt.value), learnt.usage


def _propose(setup: Setup, state: State, place: Place, memory: Memory, rolled: Rollout, clock: Clock) -> Made:
    """From scored rows to a judged candidate."""
    p, optimizer = setup.params, setup.optimizer
    with clock.phase("reflect"):
        batches = minibatches(rolled.rows, p.minibatch_size, p.seed, place.step)
        found = reflect(memory, batches, optimizer, p.workers, failure_only=p.failure_only)
    with clock.phase("aggregate"):
        merged = _aggregated(setup, memory, found)
    with clock.phase("select"):
        chosen = select(memory, merged.value, optimizer)
    with clock.phase("update"):
        candidate = update(memory, chosen.value, p.update_mode, optimizer)
    with clock.phase("evaluate"):
        version, verdict, judged = _judge(setup, state, place, candidate, merged.value)
    analyst = found.usage + merged.usage + chosen.usage + candidate.usage
    return Made(
        place, rolled.scores, found, merged.value, chosen.value, candidate, version, verdict, memory.edit_budget,
        analyst, rolled.usage + judged,
    )  # fmt: skip


def _aggregated(setup: Setup, memory: Memory, found: Reflection) -> Asked[Patch]:
    if not found.patches:
        return Asked(Patch(Kind.FAILURE, ()))
    p = setup.params
    return aggregate(memory, found.patches, setup.optimizer, merge_batch_size=p.merge_batch_size, workers=p.workers)


def _judge(
    setup: Setup, state: State, place: Place, candidate: Candidate, merged: Patch
) -> tuple[Version, Verdict, Usage]:
    """The candidate's evaluation and the verdict on it. An unchanged document is not asked about again."""
    current = state.current
    assert current.score is not None
    if not merged.edits:
        return current, Verdict(Action.SKIP_NO_PATCHES, current.score, 0.0, 1.0, "no edit was proposed"), Usage()
    if candidate.text == current.text:
        return current, Verdict(Action.REJECT, current.score, 0.0, 1.0, "the edits change nothing"), Usage()
    return _evaluate(setup, state, candidate.text, f"step_{place.step}", place.step)


def _evaluate(setup: Setup, state: State, text: str, origin: str, step: int) -> tuple[Version, Verdict, Usage]:
    rolled = rollout(text, setup.val, setup.target, setup.score)
    version = evaluated(text, origin, step, setup.gate.values(rolled.rows), rolled.scores)
    assert state.best.score is not None
    verdict = decide(setup.gate, state.current.values, version.values, state.best.score, step)
    return version, verdict, rolled.usage


def _decided(setup: Setup, state: State, made: Made) -> State:
    """The state after the gate, its tokens not yet counted."""
    after = _accepted(replace(state, step=made.place.step), made.version, made.verdict.action)
    if made.verdict.action is Action.REJECT:
        tried = [each.edit for each in made.candidate.applied if each.status in DONE]
        after = with_rejected(after, tried, made.verdict.delta, setup.params.rejected_limit)
    return after


def _accepted(state: State, version: Version, action: Action) -> State:
    if action is Action.ACCEPT_NEW_BEST:
        return replace(state, current=version, best=version)
    return replace(state, current=version) if action is Action.ACCEPT else state


def _end_epoch(setup: Setup, state: State, place: Place) -> tuple[State, dict[str, Any] | None, tuple[Usage, Usage]]:
    """slow_update after an epoch's last step, from the second epoch, when the epoch has changed the document."""
    wanted = setup.params.use_slow_update and place.last_of_epoch and place.epoch >= 2
    if not wanted or state.epoch_skill == state.current.text:
        return state, None, (Usage(), Usage())
    p = setup.params
    tasks = sample_tasks(setup.train, p.slow_update_samples, p.seed, place.epoch)
    memory = _memory(setup, state, place)
    slow = slow_update(memory, state.epoch_skill, tasks, setup.target, setup.optimizer, setup.score)
    origin = f"slow_update_{place.epoch}"
    if slow.candidate == state.current.text:
        return state, {"action": str(Action.REJECT), "reason": "no guidance"}, (slow.analyst, slow.rollout)
    version, verdict, judged = _evaluate(setup, state, slow.candidate, origin, place.step)
    assert version.scores is not None
    kept = {
        "action": str(verdict.action), "reason": verdict.reason, "p": verdict.p, "delta": verdict.delta,
        "candidate_hash": version.hash, "selection": version.scores.public(),
    }  # fmt: skip
    return _accepted(state, version, verdict.action), kept, (slow.analyst, slow.rollout + judged)
