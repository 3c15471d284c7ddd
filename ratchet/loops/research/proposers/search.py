"""Proposes values for a few of the arena's knobs: a tree-structured Parzen estimator over all that was tried (Optuna).

The study is told afresh from the question's trials each time, so that nothing is lost by a kill; the one in the
question's folder is a mirror for Optuna's own tools. Refuses to know what a knob means.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from pydantic import Field

from ratchet.core.errors import InputError
from ratchet.loops.research import guard
from ratchet.loops.research.program import KnobRange, Program
from ratchet.loops.research.records import Exhausted, Proposal, Question, Status
from ratchet.params import Params
from ratchet.train.arena import Knob, Value, knobs, with_knobs

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

MIRROR = "study.log"
DIGITS = 3
"""Significant digits of a proposed number: nobody reads more, and a result never hangs on the fourth."""
ASKS = 50
"""Duplicates that the sampler may offer before the values not tried yet are gone through in turn."""
COUNTABLE = 100_000

Space: TypeAlias = "dict[str, BaseDistribution]"
Values: TypeAlias = "dict[str, Value]"


class SearchParams(Params):
    """`iterate.search`: a search over constants that the arena declares."""

    knobs: dict[str, KnobRange | None] = Field(
        default_factory=lambda: {
            "MATRIX_LR": [0.01, 0.16],
            "EMBEDDING_LR": [0.15, 2.4],
            "HEAD_LR": [0.001, 0.016],
            "SCALAR_LR": [0.1, 2.0],
            "WARMDOWN": [0.2, 1.0],
            "SOFT_CAP": [8.0, 40.0],
        },
        min_length=1,
        max_length=6,
        description="the arena's knobs that are turned, each with [low, high] or choices; null = all it allows",
    )
    random_trials: int = Field(2, ge=0, description="experiments drawn at random before the estimator is asked")


class Search:
    """A proposer that needs no key and no network. The baseline is its first trial; it does not mend crashes."""

    name = "search"

    def __init__(self, params: SearchParams) -> None:
        self.params = params

    def propose(self, question: Question) -> Proposal:
        """Values that no earlier trial had. Raises Exhausted when all were tried, InputError for a knob not there."""
        if not question.trials:
            return Proposal(question.source, "baseline", self.name)
        space = space_of(question.source, question.program, self.params.knobs)
        told = _told(question, space)
        _mirror(question.folder / MIRROR, space, told)
        proposed = (question.source, *(proposal.source for proposal in question.pending))
        seen = {trial.arena_sha for trial in question.trials} | {guard.arena_sha(source) for source in proposed}
        for values in _offers(question, space, told, self.params.random_trials):
            source = with_knobs(question.source, values)
            if guard.arena_sha(source) not in seen:
                return Proposal(source, _description(question.source, values), self.name)
        names = ", ".join(space)
        raise Exhausted("search", f"every value of {names} was tried", "widen iterate.search.knobs, or stop here")


def space_of(source: str, program: Program, wanted: Mapping[str, KnobRange | None]) -> Space:
    """The distributions of the knobs to turn: those that program.md names, else those of the parameters."""
    where = "program.md: search" if program.search else "iterate.search.knobs"
    wanted = program.search or wanted
    declared = knobs(source)
    if len(wanted) > 6:
        raise InputError(
            where, f"names {len(wanted)} knobs", "name 6 at most: a search in more finds nothing overnight"
        )
    for name in wanted:
        if name not in declared:
            hint = ", ".join(declared) or "none at all"
            raise InputError(where, f"the arena has no knob {name!r}", f"name some of {hint}")
    return {name: _distribution(declared[name], tried, where) for name, tried in wanted.items()}


def _distribution(knob: Knob, tried: KnobRange | None, where: str) -> BaseDistribution:
    """What may be tried of `knob`. Raises InputError when `tried` is not within what the arena allows."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    values = list(knob.choices) if tried is None and knob.choices else tried
    values = [knob.low, knob.high] if values is None else values
    bad = [value for value in values if value is None or knob.refusal(value)]
    if bad:
        raise InputError(where, f"{knob.name} = {bad[0]!r} {knob.refusal(bad[0])}", "stay within the arena's line")
    if knob.choices:
        return CategoricalDistribution(values)
    low, high = _ends(knob.name, values, where)
    if knob.kind == "int":
        return IntDistribution(int(low), int(high), log=knob.log)
    return FloatDistribution(low, high, log=knob.log)


def _ends(name: str, values: Sequence[object], where: str) -> tuple[float, float]:
    match values:
        case [int() | float() as low, int() | float() as high] if low < high:
            return low, high
        case _:
            raise InputError(where, f"{name} = {values!r} is no range", "write [low, high]")


def _told(question: Question, space: Space) -> list[optuna.trial.FrozenTrial]:
    """Every experiment as the study is to know it. A crash is worse than any score; what was proposed in this round
    is running; an arena without these knobs, or with other values, says nothing."""
    from optuna.trial import TrialState, create_trial

    known: list[tuple[str, float | None, TrialState]] = []
    for trial in question.trials:
        crashed = trial.status is Status.CRASH or trial.val_bpb is None
        state = TrialState.PRUNED if crashed else TrialState.COMPLETE
        if trial.commit:  # else there was no proposal
            known.append((question.source_of(trial.commit), trial.val_bpb, state))
    known += [(proposal.source, None, TrialState.RUNNING) for proposal in question.pending]
    told: list[optuna.trial.FrozenTrial] = []
    for source, score, state in known:
        values = _values(source)
        if all(name in values and _contains(space[name], values[name]) for name in space):
            value = score if state is TrialState.COMPLETE else None
            chosen = {name: values[name] for name in space}
            told.append(create_trial(state=state, value=value, params=chosen, distributions=space))
    return told


def _contains(distribution: BaseDistribution, value: Value) -> bool:
    try:
        return distribution._contains(distribution.to_internal_repr(value))
    except (ValueError, TypeError):
        return False


@lru_cache(maxsize=4096)
def _values(source: str) -> Mapping[str, Value]:
    """The knobs' values; none when the source is not an arena that says them, or not one that may be tried."""
    if guard.refusal(source):
        return {}
    try:
        return {name: knob.value for name, knob in knobs(source).items()}
    except InputError:
        return {}


def _good(trials: int) -> int:
    """How many of the best trials count as good: a quarter. Of 40 random paraboloids in 6 knobs, 12 trials removed 61 %
    of the distance to the minimum and failed to gain a tenth in 3 %; with Optuna's tenth it was 42 % and 30 %."""
    return max(1, min(25, -(-trials // 4)))


def _study(seed: int, told: list[optuna.trial.FrozenTrial], random_trials: int) -> optuna.Study:
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        warnings.simplefilter("ignore", FutureWarning)  # gamma goes in Optuna 6; constraints.txt pins 5
        sampler = optuna.samplers.TPESampler(
            seed=seed % 2**32,
            n_startup_trials=random_trials + 1,  # the baseline is the first
            multivariate=True,
            constant_liar=True,
            gamma=_good,
        )
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=sampler, study_name="ratchet")
    study.add_trials(told)
    return study


def _offers(
    question: Question, space: Space, told: list[optuna.trial.FrozenTrial], random_trials: int
) -> Iterator[Values]:
    """What the sampler offers, and then every value not offered yet, in an order given by the seed."""
    import optuna

    study = _study(question.seed, told, random_trials)
    for _ in range(ASKS):
        trial = study.ask(space)
        yield {name: _rounded(space[name], trial.params[name]) for name in space}
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
    axes = [_axis(distribution) for distribution in space.values()]
    if math.prod(map(len, axes)) <= COUNTABLE:
        grid = list(itertools.product(*axes))
        for place in np.random.default_rng(question.seed).permutation(len(grid)):
            yield dict(zip(space, grid[place], strict=True))


def _axis(distribution: BaseDistribution) -> list[Value]:
    """Every value of a distribution; of real numbers, as many as there are digits for."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    match distribution:
        case CategoricalDistribution():
            return [choice for choice in distribution.choices if isinstance(choice, int | float | str)]
        case IntDistribution():
            return list(range(distribution.low, distribution.high + 1))
        case FloatDistribution():
            between = np.linspace(distribution.low, distribution.high, 10**DIGITS)
            return sorted({_rounded(distribution, float(value)) for value in between})
        case _:
            return []


def _rounded(distribution: BaseDistribution, value: Value) -> Value:
    """A real number at DIGITS significant digits, within its range; anything else as it is."""
    from optuna.distributions import FloatDistribution

    if not isinstance(distribution, FloatDistribution) or isinstance(value, str):
        return value
    return min(max(float(f"{value:.{DIGITS}g}"), distribution.low), distribution.high)


def _description(incumbent: str, values: Values) -> str:
    """What differs from the incumbent, in one line."""
    before = _values(incumbent)
    return ", ".join(f"{name} {before[name]} → {value}" for name, value in values.items() if before[name] != value)


def _mirror(path: Path, space: Space, told: list[optuna.trial.FrozenTrial]) -> None:
    """Replace the journal at `path` by the study as it is told. Best effort for readers; nothing reads it back here."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    path.parent.mkdir(parents=True, exist_ok=True)
    temp = path.with_name(f".{path.name}.new")
    temp.unlink(missing_ok=True)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(storage=JournalStorage(JournalFileBackend(str(temp))), study_name="ratchet")
    study.add_trials(told)
    temp.replace(path)
