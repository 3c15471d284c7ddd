"""From parameters and packed data to a session, and from a session to its published results.

What the stage `iterate` and the flow `research` call. Refuses to know how a round goes (step.py) and how results are
written (publish.py).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import ratchet
from ratchet.core.budget import Budget
from ratchet.core.errors import InputError
from ratchet.core.fingerprint import closure_digest, constraints_digest, digest, file_digest, tree_digest
from ratchet.core.loop import drive
from ratchet.core.rundir import RunDirectory, open_run, read_identity, run_paths
from ratchet.loops.research import events as told
from ratchet.loops.research import guard
from ratchet.loops.research.compare import compare
from ratchet.loops.research.events import Events, Everyone
from ratchet.loops.research.exchange import SharedFolder, ThroughRemote
from ratchet.loops.research.executor import (
    Executor,
    Experiment,
    Laboratory,
    StoppedError,
    Threads,
)
from ratchet.loops.research.experiment import Workbench, kept, patient
from ratchet.loops.research.parameters import IterateParams
from ratchet.loops.research.pool import through_deployment
from ratchet.loops.research.program import read_program
from ratchet.loops.research.proposers import make
from ratchet.loops.research.proposers.search import Search, space_of
from ratchet.loops.research.proposing import Proposing
from ratchet.loops.research.publish import Session, TestLook, publish
from ratchet.loops.research.records import Proposer
from ratchet.loops.research.state import State, Version, entries
from ratchet.loops.research.step import Data, Rounds, Setting
from ratchet.loops.research.worktree import Branch, Repository
from ratchet.sandbox.choose import choose
from ratchet.settings import Settings
from ratchet.tables import research_findings, results
from ratchet.train.arena import read_source
from ratchet.train.device import Device, resolve_device, resolve_dtype, shared
from ratchet.train.interruption import STOPPED_CODE, Interruption
from ratchet.train.launch import sealed_digest

LOOP = "iterate"

DECIDING = ("step.py", "../../train/logits_server.py")
"""The modules whose import closures decide a session's bytes; what shows and publishes it does not."""


@dataclass(frozen=True)
class Request:
    """What is to be improved on which data. Paths relative to `project`, or absolute."""

    params: IterateParams
    train: Path
    val: Path
    test: Path
    tokenizer: Path
    arena: Path
    program: Path
    project: Path

    def source(self) -> str:
        """The baseline: the arena with the knobs of `iterate.train`. Raises InputError."""
        return read_source(self.arena, self.params.train.knobs)


@dataclass(frozen=True)
class Published:
    """Where results go: a folder and a file."""

    folder: Path
    metrics: Path


@dataclass(frozen=True)
class Parts:
    """What may be put in place of the real thing: who proposes, who runs experiments, who watches."""

    proposer: Proposer | None = None
    laboratory: Laboratory | None = None
    listeners: Sequence[Events] = ()


REAL = Parts()


@cache
def deciding_digest() -> str:
    """Hash of all of Ratchet's code that decides a session's results."""
    here, root = Path(__file__).resolve().parent, Path(ratchet.__file__).resolve().parent.parent
    return closure_digest([(here / name).resolve() for name in DECIDING], root)


def identity(request: Request, source: str, device: Device) -> dict[str, Any]:
    """What decides the bytes of a session, by name."""
    inputs = {name: tree_digest(getattr(request, name)) for name in ("train", "val", "test", "tokenizer")}
    inputs["program"] = file_digest(request.program)
    if replayed := _replayed(request):
        inputs["session"] = tree_digest(replayed)
    return {
        "params": request.params.defining(),
        "inputs": inputs,
        "code": {"arena": guard.arena_sha(source), "loop": deciding_digest(), "trainer": sealed_digest()},
        "constraints": constraints_digest(),
        "device": device.identity(resolve_dtype(request.params.train.dtype, device)),
    }


def iterate_and_publish(
    request: Request, outputs: Published, settings: Settings, parts: Parts = REAL
) -> dict[str, Any]:
    """Run the session of `request` from where it stands to its end and publish it; returns its metrics.

    Raises InputError, InfrastructureError (the world failed; nothing is lost), and SystemExit 130 or 143 when a signal
    or `ratchet stop` ended it: committed, nothing published.
    """
    device = shared(resolve_device(settings.device, settings.threads), settings.ranks)
    repository, program, source = Repository.of(request.project), read_program(request.program), request.source()
    if why := guard.refusal(source):
        raise InputError(request.arena, why, "mend the file")
    base = _base(request, repository)
    if parts.proposer is None and request.params.proposer == Search.name:
        space_of(source, program, request.params.search.knobs)  # a wrong knob is told before anything is trained
    who = identity(request, source, device)
    with _open(request.params, who, settings) as run, ExitStack() as stack:
        sandbox = choose(settings, device=device.torch_name)
        setting = Setting(
            params=request.params, program=program, source=source, base=base, isolation=sandbox.isolation,
            arena=_inside(request), data=_data(request, who), branch=_branch(request, run, repository),
        )  # fmt: skip
        interruption = stack.enter_context(
            Interruption("iterate: {name}: what is under way is saved; once more to stop at once")
        )
        events = Everyone(*parts.listeners)
        places = devices(device, request.params.parallel)
        bench = Workbench(sandbox, places, events, warm=run.path.resolve() / "warm")
        stack.callback(bench.close)
        laboratory = parts.laboratory or patient(bench)
        executor = _executor(request, settings, laboratory, bool(parts.laboratory), places[0])
        stack.callback(executor.close)
        proposer = parts.proposer or make(request.params.proposer, request.params, sandbox)
        proposing = Proposing(proposer, run.path.resolve() / "proposals", setting.branch, setting.arena, program,
                              request.params.seed, events)  # fmt: skip
        rounds = Rounds(setting, run, proposing, executor, events, lambda: interruption.received)
        return _run(rounds, interruption, outputs)


def _replayed(request: Request) -> Path | None:
    """The folder of the session that is to be replayed, if one is. Raises InputError when it is none."""
    session = request.params.replay.session
    if request.params.proposer != "replay" or session is None:
        return None
    folder = request.project / session
    if not (folder / "session.json").is_file():
        raise InputError(folder, "is no session", "name a copy of a session's data/iterate folder")
    return folder


def _base(request: Request, repository: Repository) -> str:
    """The commit that the branch starts from: the user's, or that of the session that is replayed."""
    head, replayed = repository.head(), _replayed(request)
    if replayed is None:
        return head
    base = json.loads((replayed / "session.json").read_text(encoding="utf-8"))["base"]
    if not repository.has([base]):
        what = f"started from commit {base}, which is not in this repository"
        raise InputError(replayed, what, "fetch the branch it is on")
    return base


def _inside(request: Request) -> str:
    """The arena's path in the project, with slashes. Raises InputError when it lies elsewhere."""
    try:
        return (request.project / request.arena).resolve().relative_to(request.project.resolve()).as_posix()
    except ValueError:
        raise InputError(request.arena, f"is not below {request.project}", "keep the arena in the project") from None


def _data(request: Request, who: Mapping[str, Any]) -> Data:
    places = {name: getattr(request, name).resolve() for name in ("train", "val", "test", "tokenizer")}
    decides = [who["inputs"]["train"], who["inputs"]["tokenizer"], who["code"]["trainer"], who["device"]]
    return Data(**places, digest=digest([*decides, who["constraints"]]))


def _open(params: IterateParams, who: dict[str, Any], settings: Settings) -> RunDirectory:
    """The run of identity `who`. A tag that an earlier run has must be that run: a difference is refused with it."""
    named = settings.resume_run
    if params.tag and not named:
        same = [path for path in run_paths(settings.runs, LOOP) if _tag_of(path) == params.tag]
        named = max(same, key=lambda path: (path / "identity.json").stat().st_mtime_ns, default=None)
    return open_run(
        LOOP, who, params.portable(), runs=settings.runs, resume=settings.resume, run=named,
        adopt_code=settings.adopt_code, allow_inexact=settings.allow_inexact,
    )  # fmt: skip


def _tag_of(path: Path) -> str | None:
    return read_identity(path)["identity"].get("params", {}).get("tag")


def _branch(request: Request, run: RunDirectory, repository: Repository) -> Branch:
    tag = request.params.tag or run.fingerprint.replace(".", "-")[:8] + run.fingerprint.replace(".", "-")[16:]
    branch = Branch(repository, tag, run.path.resolve() / "worktree")
    branch.check()
    return branch


def _executor(request: Request, settings: Settings, laboratory: Laboratory, given: bool, device: Device) -> Executor:
    """Who runs the experiments: `laboratory` here, or a deployment when the settings say so and none was `given`.
    `device`: what each would be trained on here."""
    if settings.executor != "threads" and not given:
        shares = settings.executor == "prefect"
        carrier = SharedFolder() if shares else ThroughRemote(request.project, device)
        laboratory = through_deployment(settings.experiment_deployment, carrier, settings.experiment_lost_s)
    return Threads(kept(laboratory), request.params.parallel)


def devices(device: Device, workers: int) -> tuple[Device, ...]:
    """One device a worker: the CUDA cards from `device` on in turn, so many at once as share a training, or an equal
    part of the CPU's threads."""
    if device.kind != "cuda":
        return (replace(device, threads=max(1, device.threads // workers)),) * workers
    import torch

    groups = max(1, (torch.cuda.device_count() - device.index) // device.ranks)
    firsts = [device.index + place % groups * device.ranks for place in range(workers)]
    return tuple(shared(resolve_device(f"cuda:{first}", device.threads), device.ranks) for first in firsts)


@dataclass(frozen=True, kw_only=True)
class _Until(Budget):
    """Ends the loop when the experiments are done, the proposer has no more, or somebody asks.

    A proposer that had no more is asked again by the next process: its budget may have been raised since.
    """

    rounds: Rounds
    experiments: int

    def exhausted(self, seq: int, rows: Iterable[Mapping[str, Any]]) -> str | None:
        """As `Budget.exhausted`."""
        committed = [row for row in rows if row["seq"] < seq]
        if self.rounds.interrupted():
            return "interrupted"
        if not committed or (self.stop_file and self.stop_file.exists()):
            return super().exhausted(seq, [])
        if len(entries(committed)) - 1 >= self.experiments:
            return f"the budget of {self.experiments} experiments is used up"
        # the proposer last: a process that has not asked it yet must give the same reason
        return super().exhausted(seq, committed) or self.rounds.proposing.exhausted or None


def _run(rounds: Rounds, interruption: Interruption, outputs: Published) -> dict[str, Any]:
    """Drive the rounds to their end, look at the test split, publish."""
    run, params, events = rounds.run, rounds.params, rounds.events
    seconds = None if params.hours is None else params.hours * 3600
    budget = _Until(rounds=rounds, experiments=params.experiments, seconds=seconds, money=params.money,
                    stop_file=run.stop_file)  # fmt: skip
    _greet(rounds, seconds)
    try:
        last = drive({}, rounds.step, store=run.store, ledger=run.ledger, budget=budget)
        rows = run.ledger.rows()
        why = budget.exhausted(len(rows), rows) or ""
        if last:
            rounds.match(State.of(last), len(rows))
        if interruption.received or run.stop_file.exists():
            raise StoppedError
        _refuse_shortened(rounds)
        session = _ended(rounds, State.of(last), why)
        metrics = publish(session, outputs.folder, outputs.metrics)
    except StoppedError:
        _say_stopped(rounds, interruption)
        raise SystemExit(interruption.exit_code or STOPPED_CODE) from None
    run.end("finished", why)
    events.found(research_findings.in_research(results.read(outputs.folder / "results.tsv"), metrics))
    events.ended(why)
    return metrics


def _greet(rounds: Rounds, seconds: float | None) -> None:
    rows, params = rounds.run.ledger.rows(), rounds.params
    head = rounds.run.store.head()
    done = entries(rows, head[0] if head else 0)
    rounds.events.began(
        told.Session(
            tag=rounds.setting.branch.tag, proposer=params.proposer, isolation=rounds.setting.isolation,
            experiments=params.experiments, seconds=seconds, money=params.money,
            trials=tuple(entry.trial for entry in done), spent_s=sum(row["seconds"] for row in rows),
            folder=rounds.run.path.resolve(),
        )
    )  # fmt: skip


def _refuse_shortened(rounds: Rounds) -> None:
    """Raise InputError when the session has more experiments than it is now asked for."""
    done = len(entries(rounds.run.ledger.rows())) - 1
    if done > rounds.params.experiments:
        what = f"has {done} experiments, iterate.experiments = {rounds.params.experiments}"
        raise InputError(rounds.run.path, what, "raise it again, or start anew under another iterate.tag")


def _ended(rounds: Rounds, state: State, why: str) -> Session:
    """The session with its look at the test split: once, and only when there is something to look for."""
    test = None
    if state.best.key != state.baseline.key:
        rounds.events.noted("the test split is judged")
        test = _look(rounds, state)
    return Session(
        state=state, entries=entries(rounds.run.ledger.rows()), branch=rounds.setting.branch,
        arena=rounds.setting.arena, work=rounds.work, table=rounds.table, proposer=rounds.params.proposer,
        ended=why, rule=rounds.rule(state), test=test,
    )  # fmt: skip


def _look(rounds: Rounds, state: State) -> TestLook:
    """Baseline and best judged on the test split, as they were trained: the keys in the state name their models, also
    when the same training would have another key by now (--adopt-code, --allow-inexact)."""
    versions = (state.baseline, state.best)
    jobs = [_tested(rounds, version) for version in versions]
    baseline, best = results = rounds.run_all(jobs)
    for version, result in zip(versions, results, strict=True):
        if result.val_bpb is None:
            what = f"the judge gives no number for experiment {version.number} on the test split: {result.reason}"
            raise InputError(rounds.run.path, what, "run again")
    tables = [
        pq.read_table(job.folder / result.documents).to_pandas() for job, result in zip(jobs, results, strict=True)
    ]
    gain = compare(*tables, seed=rounds.params.seed, name=["test"])
    return TestLook(baseline, best, gain, len(tables[0]))


def _tested(rounds: Rounds, version: Version) -> Experiment:
    source = rounds.repository.source(version.commit, rounds.setting.arena)
    seed, limit = rounds.params.train.seed, rounds.params.limits.baseline_seconds
    job = rounds.job(version.number, source, seed, limit, "the test split", test=True)
    return replace(job, key=version.key, folder=rounds.work / version.key)


def _say_stopped(rounds: Rounds, interruption: Interruption) -> None:
    run, done = rounds.run, max(0, len(entries(rounds.run.ledger.rows())) - 1)
    who = interruption.received.name if interruption.received else "`ratchet stop`"
    run.end("stopped", f"{who} after {done} experiments")
    rounds.events.ended(f"stopped by {who}")
    print(
        f"iterate: stopped by {who} after {done} experiments, which are saved in {run.path}; "
        f"continue with `dvc repro` or `ratchet resume {run.path}`",
        file=sys.stderr,
        flush=True,
    )
