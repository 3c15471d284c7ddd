"""One round of the research loop as one `drive` step: match git to the state, propose, train, judge, decide, row.

Round 0 measures the baseline and its noise. Each further round tries `parallel` candidates from one incumbent; verdicts
follow the order of candidates, so the result does not depend on who finishes first. Refuses to know how a proposal is
made, how an experiment runs, and how state becomes durable.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from ratchet.core.budget import Budget
from ratchet.core.errors import InputError
from ratchet.core.fingerprint import digest
from ratchet.core.gate import Rule
from ratchet.core.loop import Outcome
from ratchet.core.rundir import RunDirectory
from ratchet.core.seeds import derive
from ratchet.loops.research import guard
from ratchet.loops.research.candidate import Candidate, examined
from ratchet.loops.research.compare import sd
from ratchet.loops.research.events import Events
from ratchet.loops.research.executor import Executor, Experiment, Result, results_of
from ratchet.loops.research.experiment import tidy
from ratchet.loops.research.parameters import IterateParams
from ratchet.loops.research.program import Program
from ratchet.loops.research.proposing import Answer, Asked, Proposing
from ratchet.loops.research.records import Cost, Failure, Status, Trial
from ratchet.loops.research.state import Entry, State, Version, abbreviated, entries
from ratchet.loops.research.verdict import Contender, Court, Decided, Incumbent, Look
from ratchet.loops.research.worktree import Branch, Repository
from ratchet.tables.results import one_line

SEEDS = 2**31
"""Fresh seeds are below this: every library takes them."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """The packed splits, the tokenizer, and the hash of what a training reads. Absolute paths."""

    train: Path
    val: Path
    test: Path
    tokenizer: Path
    digest: str


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a session is made from. `source`: the baseline's text; `base`: the commit that a new session starts from."""

    params: IterateParams
    program: Program
    source: str
    arena: str
    base: str
    data: Data
    branch: Branch
    isolation: str


class Rounds:
    """The steps of one session in this process. `interrupted`: whether to end now."""

    def __init__(
        self, setting: Setting, run: RunDirectory, proposing: Proposing, executor: Executor, events: Events,
        interrupted: Callable[[], object],
    ) -> None:  # fmt: skip
        self.setting, self.params, self.run, self.proposing = setting, setting.params, run, proposing
        self.executor, self.events, self.interrupted = executor, events, interrupted
        self.work = run.path.resolve() / "work"
        self.repository: Repository = setting.branch.repository
        self._announced: int | None = None

    def step(self, seq: int, told: dict[str, Any]) -> Outcome:
        """What `drive` calls."""
        if seq == 0:
            self._announced = 0
            return self._baseline()
        state = State.of(told)
        self.match(state, seq)
        return self._round(seq, state)

    def match(self, state: State, seq: int) -> None:
        """Make branch, refs, worktree and folders those of the committed `state`; tell what is new in the ledger."""
        done = entries(self.run.ledger.rows(), seq)
        self._recreate(state, done)
        lost = {entry.number: entry.commit for entry in done if entry.commit and entry.trial.status is not Status.KEEP}
        self.setting.branch.match(state.best.commit, lost)
        for folder in sorted(self.work.iterdir()) if self.work.is_dir() else ():
            if any(folder.glob("result-*.json")):
                tidy(folder, keep_model=folder.name in (state.baseline.key, state.best.key))
        if self._announced is not None:
            for entry in done[self._announced :]:
                self.events.decided(entry.number, entry.trial)
        self._announced = len(done)

    def _recreate(self, state: State, done: Sequence[Entry]) -> None:
        """Make the commits anew when the repository has lost them (a clone that got the run directory alone)."""
        made = [entry for entry in done if entry.commit]
        if self.repository.has([state.base, *(entry.commit for entry in made)]):
            return
        if not self.repository.has([state.base]):
            what = f"commit {state.base}, which the session started from, is not in the repository"
            raise InputError(self.run.path, what, "fetch the branch it is on, or start again under a new tag")
        full = {abbreviated(entry.commit): entry.commit for entry in made}
        for entry in made:
            source = self.proposing.kept(entry.number).source if entry.number else self.setting.source
            self._commit(full.get(entry.trial.parent, state.base), source, entry.trial.description)

    def _commit(self, parent: str, source: str, description: str) -> str:
        return self.repository.commit(parent, self.setting.arena, source, f"{description}\n")

    # Round 0

    def _baseline(self) -> Outcome:
        """Train the baseline with every noise seed. Raises InputError when it gives no score."""
        begun, source, seed = time.monotonic(), self.setting.source, self.params.train.seed
        commit = self._commit(self.setting.base, source, "baseline")
        seeds, limit = range(seed, seed + self.params.noise_seeds), self.params.limits.baseline_seconds
        jobs = [self.job(0, source, each, limit, f"baseline, seed {each}") for each in seeds]
        results = self.run_all(jobs)
        for job, result in zip(jobs, results, strict=True):
            if result.val_bpb is None:
                what = f"the baseline fails with seed {job.train['seed']}: {result.reason}"
                raise InputError(self.setting.arena, what, f"see {job.folder / 'run.log'}")
        scores = tuple(result.val_bpb for result in results if result.val_bpb is not None)
        noise, mean, limits = sd([*scores]), sum(scores) / len(scores), self.params.limits
        version = Version(number=0, commit=commit, key=jobs[0].key, score=scores[0], lines=guard.code_lines(source))
        longest = max(result.seconds or 0.0 for result in results)
        state = State(
            base=self.setting.base, baseline=version, best=version, sd=noise, scores=scores, curve=results[0].curve,
            said=results[0].said, seconds_limit=max(limits.floor_seconds, limits.factor * longest),
        )  # fmt: skip
        reason = f"the baseline: {mean:.6f} on average, sd {noise:.6f} over {len(seeds)} seeds"
        candidate = Candidate(
            0, Answer(source=source, description="baseline", proposer="baseline"), commit, guard.arena_sha(source)
        )
        entry = self._entry(state, source, candidate, results[0], Decided(Status.KEEP, reason))
        self.events.noted(f"the noise is measured: sd {noise:.6f} over {len(seeds)} seeds")
        return Outcome(state.as_json(), self._row([entry], begun, [], results), score=scores[0])

    # The others

    def _round(self, seq: int, state: State) -> Outcome:
        begun = time.monotonic()
        done = entries(self.run.ledger.rows(), seq)
        incumbent = self.repository.source(state.best.commit, self.setting.arena)
        candidates = self._candidates(seq, state, done, incumbent)
        if not candidates:
            return Outcome(state.as_json(), self._row([], begun, [], []))
        results = self._tried(state, candidates)
        found = self._verdicts(seq, state, incumbent, candidates, results)
        new = [
            self._entry(state, incumbent, each, results.get(each.number), each.early or found[each.number])
            for each in candidates
        ]
        after = self._after(state, candidates, results, new)
        costs = [each.answer.cost for each in candidates]
        return Outcome(after.as_json(), self._row(new, begun, costs, results.values()), score=after.best.score)

    def _candidates(self, seq: int, state: State, done: list[Entry], incumbent: str) -> list[Candidate]:
        """The round's candidates as commits; none when the proposer has no more."""
        left = self._left(seq, state)
        asked = Asked(
            seq=seq,
            slots=min(self.params.parallel, int(left["experiments"])),
            state=state,
            trials=tuple(entry.trial for entry in done),
            incumbent=incumbent,
            left=left,
            commits={abbreviated(entry.commit): entry.commit for entry in done if entry.commit},
        )
        answers = self.proposing.ask(asked)
        first = {entry.trial.arena_sha: entry for entry in reversed(done) if entry.trial.arena_sha}
        sha = guard.arena_sha(incumbent)
        made: list[Candidate] = []
        for number, answer in enumerate(answers, state.number):
            commit = self._commit(state.best.commit, answer.source, answer.description) if answer.source else ""
            made.append(examined(Candidate(number, answer, commit), state.best, sha, first, made))
        return made

    def _left(self, seq: int, state: State) -> dict[str, float]:
        """What remains, for the proposer to know."""
        left = {"experiments": float(self.params.experiments - (state.number - 1))}
        if self.params.money is not None:
            left |= Budget(money=self.params.money).left(seq, self.run.ledger.rows())
        return left

    def _tried(self, state: State, candidates: Sequence[Candidate]) -> dict[int, Result]:
        """The results of those that are worth a training, by number."""
        jobs = {
            each.number: self.job(
                each.number, each.answer.source, self.params.train.seed, state.seconds_limit, each.answer.description
            )
            for each in candidates
            if not each.early
        }
        return dict(zip(jobs, self.run_all([*jobs.values()]), strict=True))

    def _verdicts(
        self, seq: int, state: State, incumbent: str, candidates: Sequence[Candidate], results: Mapping[int, Result]
    ) -> dict[int, Decided]:
        """The gate's word on every candidate that was tried."""
        sources = {each.number: each.answer.source for each in candidates}

        def look(source: str, seed: int, result: Result) -> Look:
            return Look(result, self._table(self.key(source, seed), result))

        def again(unsure: Sequence[Contender]) -> tuple[Look, list[Look]]:
            fresh = derive(self.params.seed, "confirm", seq) % SEEDS
            texts = [incumbent, *(sources[each.number] for each in unsure)]
            numbers = [unsure[0].number, *(each.number for each in unsure)]
            whats = ["the incumbent once more", *(f"experiment {each.number} once more" for each in unsure)]
            jobs = [
                self.job(number, text, fresh, state.seconds_limit, f"{what}, on the fresh seed {fresh}")
                for number, text, what in zip(numbers, texts, whats, strict=True)
            ]
            ours, *theirs = [look(text, fresh, result) for text, result in zip(texts, self.run_all(jobs), strict=True)]
            return ours, theirs

        best, rule = state.best, self.rule(state)
        table = pq.read_table(self.work / best.key / self.table).to_pandas()
        court = Court(
            rule, self.setting.program.objective.maximum, self.params.seed, Incumbent(best.score, best.lines, table)
        )
        contenders = [
            Contender(number, guard.code_lines(sources[number]), look(sources[number], self.params.train.seed, result))
            for number, result in results.items()
        ]
        return court.verdicts(contenders, again)

    def _after(
        self, state: State, candidates: Sequence[Candidate], results: Mapping[int, Result], new: Sequence[Entry]
    ) -> State:
        """The state after the round: a kept candidate is the best; what crashed is shown once to its slot."""
        after = replace(state, number=state.number + len(new), failures=_failures(candidates, results, new))
        for result in results.values():
            if result.curve:
                after = replace(after, curve=result.curve, said=result.said)
        for each, entry in zip(candidates, new, strict=True):
            if entry.trial.status is Status.KEEP and entry.trial.val_bpb is not None:
                lines = guard.code_lines(each.answer.source)
                kept = Version(
                    number=each.number, commit=each.commit, key=entry.key, score=results[each.number].val_bpb or 0.0,
                    lines=lines,
                )  # fmt: skip
                after = replace(after, best=kept)
        return after

    # Jobs, rows

    def key(self, source: str, seed: int) -> str:
        """Names a training by all that decides it: what the source computes, its seed and parameters, its data."""
        train = self.params.train.defining() | {"seed": seed, "knobs": {}}
        return digest([guard.arena_sha(source), train, self.setting.data.digest])[:24]

    def job(self, number: int, source: str, seed: int, seconds: float, what: str, *, test: bool = False) -> Experiment:
        """The experiment that trains `source` with `seed` and judges it on the validation split (or test)."""
        params, data = self.params, self.setting.data
        key = self.key(source, seed)
        return Experiment(
            key=key, number=number, what=what, folder=self.work / key, source=source,
            train=params.train.model_dump(mode="json") | {"seed": seed, "knobs": {}}, rows=data.train,
            tokenizer=data.tokenizer, split=data.test if test else data.val,
            judged_rows=None if test else params.judged_rows, batch_rows=params.batch_rows,
            judge_limit_s=params.limits.judge_seconds, seconds=seconds, memory_mb=params.limits.memory_mb,
            processes=params.limits.processes, session=self.run.fingerprint,
        )  # fmt: skip

    def run_all(self, jobs: Sequence[Experiment]) -> list[Result]:
        """The results of `jobs` in their order. Raises StoppedError when the session is to end."""
        return results_of([self.executor.submit(job) for job in jobs], self.interrupted, self.executor)

    @property
    def table(self) -> str:
        """The name of the judge's table of the validation split in an experiment's folder."""
        return f"judged-{self.setting.data.val.name}.parquet"

    def rule(self, state: State) -> Rule:
        """The gate's rule under the noise of `state`."""
        gate = self.params.gate
        return Rule(
            sd=state.sd, seeds=len(state.scores), confidence=gate.confidence, tie=gate.tie,
            fewer_lines=gate.fewer_lines,
        )  # fmt: skip

    def _table(self, key: str, result: Result) -> Any:
        return pq.read_table(self.work / key / result.documents).to_pandas() if result.documents else None

    def _entry(self, state: State, incumbent: str, each: Candidate, result: Result | None, decision: Decided) -> Entry:
        """The ledger's entry of one experiment, its row of results.tsv in it."""
        answer, crashed = each.answer, decision.status is Status.CRASH
        score = each.known if result is None else result.val_bpb
        trial = Trial(
            commit=abbreviated(each.commit),
            val_bpb=None if crashed else score,
            memory_gb=result.memory_gb if result else None,
            status=decision.status,
            description=answer.description,
            parent=abbreviated(state.best.commit) if each.number else "",
            arena_sha=each.sha,
            seed=self.params.train.seed,
            steps=result.steps if result else None,
            tokens=result.tokens if result else None,
            seconds=result.seconds if result else None,
            params_m=result.params_m if result else None,
            delta=None if crashed else decision.gain,
            noise=state.sd,
            diff_lines=guard.diff_lines(incumbent, answer.source) if answer.source else 0,
            reason=one_line(decision.reason) or "no reason given",
            proposer=answer.proposer,
            isolation=result.isolation if result else self.setting.isolation,
            cost=answer.cost.money,
        )
        key = self.key(answer.source, self.params.train.seed) if result else ""
        return Entry(
            number=each.number, trial=trial, commit=each.commit, key=key, progress=decision.progress,
            was_fix=answer.was_fix,
        )  # fmt: skip

    def _row(
        self, new: Sequence[Entry], begun: float, costs: Sequence[Cost], results: Iterable[Result]
    ) -> dict[str, Any]:
        """The ledger's row. Seconds count a training that a process before this one did, so that no kill is free."""
        trained = sum(result.seconds or 0.0 for result in results) / self.params.parallel
        return {
            "entries": [entry.as_json() for entry in new],
            "seconds": max(time.monotonic() - begun, trained),
            "calls": sum(cost.calls for cost in costs),
            "tokens": sum(cost.tokens for cost in costs),
            "money": sum(cost.money for cost in costs),
        }


def _failures(
    candidates: Sequence[Candidate], results: Mapping[int, Result], new: Sequence[Entry]
) -> dict[int, Failure]:
    """By slot, the crashes that their proposer is shown; a fix that crashed again is not."""
    shown: dict[int, Failure] = {}
    for slot, (each, entry) in enumerate(zip(candidates, new, strict=True)):
        if entry.trial.status is Status.CRASH and each.answer.source and not each.answer.was_fix:
            result = results.get(each.number)
            shown[slot] = Failure(each.answer.source, entry.trial.reason, result.said if result else ())
    return shown
