"""One experiment: train a source in the sandbox, judge its model, keep both in the experiment's folder.

    arena.py job.json run.log       what was asked, and what it printed
    runs/                           the training's own run directory: a killed round goes on from its checkpoint
    trained/                        model, history.tsv, timing, metrics.json, as the job left them
    judged-<split>.parquet          the judge's table of documents
    result-<split>.json             how it ended; written last, so what is there is finished and never done again

What a candidate's training wrote is a claim: ratchet/train/claims.py checks it, and its score comes from the judge.
Refuses to know what an experiment is compared with.
"""

from __future__ import annotations

import math
import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.core import atomic
from ratchet.core.errors import InfrastructureError
from ratchet.core.fingerprint import digest
from ratchet.core.rundir import owner_of, run_paths
from ratchet.core.seeds import Permutation
from ratchet.data.packing import PackedSplit, Pieces
from ratchet.data.tokenizer import Tokenizer
from ratchet.loops.research import guard
from ratchet.loops.research.events import Events
from ratchet.loops.research.executor import (
    Experiment,
    Laboratory,
    Result,
    StoppedError,
    Worker,
    kept_result,
    result_file,
)
from ratchet.loops.research.warm import WarmProcess
from ratchet.sandbox.job import End, Ended, Job, Limits, Running, Sandbox
from ratchet.tables.results import one_line
from ratchet.train.claims import Claims, verify
from ratchet.train.device import Device, exclusive
from ratchet.train.job import ExperimentJob, Published
from ratchet.train.judge import judge
from ratchet.train.progress import read_live
from ratchet.train.refusal import Reason, Refused

JOB_MODULE = "ratchet.train.experiment_job"
POLL_S = 0.05
SHOW_S = 1.0
ATTEMPTS, WAIT_S = 3, 2.0
CURVE_POINTS = 40
DYING_S = 30.0

SAME = {
    Reason.TIMED_OUT: "no end within iterate.limits.judge_seconds",
    Reason.LOOK_AHEAD: "another future moves an answer",
    Reason.CHANGING_ANSWERS: "the same row asked again moves an answer",
    Reason.NON_FINITE: "a logit is no finite number",
}
"""What the table says of refusals whose details are measured, or hang on the judge's secret draw."""


@dataclass(frozen=True)
class Workbench:
    """A Laboratory: runs experiments in `sandbox` on this machine. `devices`: of the workers, by their place.

    `warm`: a folder for processes that start while the experiment before them is judged; None: none do.
    """

    sandbox: Sandbox
    devices: tuple[Device, ...]
    events: Events
    warm: Path | None = None
    _waiting: dict[int, WarmProcess] = field(default_factory=dict[int, WarmProcess])

    def __call__(self, job: Experiment, worker: Worker) -> Result:
        """See Laboratory."""
        device = self.devices[worker.place]
        self.events.started(job.number, job.what)
        ended = self._train(job, device, worker)
        said = guard.untrusted(ended.last)
        if ended.end is not End.DONE:
            return self._crash(reason_of(ended), said)
        result = self._crash("", said)
        try:
            result = replace(result, **checked(verify(training_job(job), job.source, device, ended.seconds)))
            self.events.trained(job.number, result.seconds or 0.0)
            self._warm_up(job, device, worker.place)
            judged = self._judge(job, device)
        except Refused as refused:
            self.events.noted(one_line(f"experiment {job.number}: refused, {refused.reason}: {refused.detail}"))
            return replace(result, reason=refusal_of(refused))
        self.events.judged(job.number, judged.val_bpb or math.nan)
        return replace(result, val_bpb=judged.val_bpb, documents=judged.documents)

    def _crash(self, reason: str, said: tuple[str, ...]) -> Result:
        return Result(val_bpb=None, reason=reason, isolation=self.sandbox.isolation, said=said)

    def _train(self, job: Experiment, device: Device, worker: Worker) -> Ended:
        """Train to the horizon from where the experiment's run directory stands."""
        if (job.folder / "trained/metrics.json").is_file():  # the last that a training publishes
            return Ended(End.DONE, 0, 0.0)
        atomic.write_text(job.folder / "arena.py", job.source)
        atomic.write_json(job.folder / "job.json", training_job(job).as_json())
        for name in ("runs", "trained"):
            (job.folder / name).mkdir(exist_ok=True)
        wait_for_the_dead(job.folder / "runs")
        # the device is held out here: a sandboxed training has a temp folder, and so a lock, of its own
        with exclusive(device), self._started(job, device, worker.place) as running:
            ended = self._wait(job, running, worker)
        if ended.end is End.STOPPED:  # an exit code is the candidate's to choose, and blames nobody else
            last = one_line(ended.last[-1]) if ended.last else ended.end.value
            raise InfrastructureError(f"experiment {job.number}", f"its training was ended: {last}", "run again")
        return ended

    def _started(self, job: Experiment, device: Device, place: int) -> Running:
        """The process of the training: the one that waits for it, or a fresh one."""
        asked, waiting = sandboxed(job, device), self._waiting.pop(place, None)
        if waiting and waiting.fits(asked):
            return waiting.take(asked, job.folder / "job.json")
        if waiting:
            waiting.close()
        return self.sandbox.start(asked)

    def _warm_up(self, job: Experiment, device: Device, place: int) -> None:
        """Let the next training's process start while this one is judged."""
        if self.warm and self.sandbox.kind == "process" and place not in self._waiting and job.split.name != "test":
            self._waiting[place] = WarmProcess(self.sandbox, self.warm / str(place), sandboxed(job, device))

    def close(self) -> None:
        """End what still waits."""
        while self._waiting:
            self._waiting.popitem()[1].close()

    def _wait(self, job: Experiment, running: Running, worker: Worker) -> Ended:
        shown = time.monotonic()
        while (ended := running.poll()) is None:
            if worker.stopping.wait(POLL_S):
                running.stop()
                raise StoppedError
            if time.monotonic() - shown > SHOW_S:
                shown = time.monotonic()
                self._show(job)
        return ended

    def _show(self, job: Experiment) -> None:
        for path in (job.folder / "runs").glob("train/*"):
            live = read_live(path)
            if live and isinstance(live.get("step"), int) and isinstance(live.get("stop_step"), int):
                self.events.progressed(job.number, live["step"], live["stop_step"])

    def _judge(self, job: Experiment, device: Device) -> Result:
        split = PackedSplit.load(job.split)
        if job.judged_rows is not None:
            split = subset(split, job.judged_rows)
        with exclusive(device):
            judgement = judge(
                job.folder / "trained/model",
                split,
                Tokenizer.load(job.tokenizer).token_bytes,
                device=device,
                batch_rows=job.batch_rows,
                sandbox=self.sandbox,
                memory_mb=job.memory_mb,
                limit_s=job.judge_limit_s,
            )
        path = result_file(job).with_name(f"judged-{job.split.name}.parquet")
        with atomic.output_file(path) as temp:
            pq.write_table(pa.Table.from_pandas(judgement.documents, preserve_index=False), temp)
        return Result(val_bpb=judgement.val_bpb, reason="", isolation=judgement.isolation, documents=path.name)


def wait_for_the_dead(runs: Path) -> None:
    """Wait until nobody holds a run in `runs`: the training of a session that was killed may be on its way out."""
    until = time.monotonic() + DYING_S
    while holder := next(filter(None, map(owner_of, run_paths(runs))), None):
        if time.monotonic() > until:
            raise InfrastructureError(runs, f"is still in use by pid {holder}", "end it and run again")
        time.sleep(POLL_S)


def sandboxed(job: Experiment, device: Device) -> Job:
    """The training of `job` as a sandbox runs it."""
    where = {"device": device.torch_name, "threads": device.threads, "ranks": device.ranks}
    environment = {f"RATCHET_{name.upper()}": str(value) for name, value in where.items()}
    return Job(
        name=f"experiment {job.number}",
        argv=("python", "-m", JOB_MODULE, str(job.folder / "job.json")),
        folder=job.folder,
        log=job.folder / "run.log",
        limits=Limits(seconds=job.seconds, memory_mb=job.memory_mb, processes=job.processes),
        reads=(job.rows, job.tokenizer, job.folder / "arena.py", job.folder / "job.json"),
        writes=(job.folder / "runs", job.folder / "trained"),
        environment=environment,
        device=device.torch_name,
        run=job.session,
    )


def training_job(job: Experiment) -> ExperimentJob:
    """What the leaf process is told."""
    out = job.folder / "trained"
    outputs = Published(out / "model", out / "history.tsv", out / "timing", out / "metrics.json")
    return ExperimentJob(
        params=job.train,
        rows=job.rows,
        tokenizer=job.tokenizer,
        arena=job.folder / "arena.py",
        runs=job.folder / "runs",
        outputs=outputs,
    )


def reason_of(ended: Ended) -> str:
    """Why a training that did not end well did not, in one line of the table: the same whenever it is done again.

    The limit of seconds is the baseline's measured time, so it is named and not given.
    """
    last = guard.untrusted(ended.last)
    if ended.end is End.CRASHED:
        how = one_line(ended.detail) or f"exit code {ended.exit_code}"
        if not last:
            return how
        return last[-1] if how.startswith("exit code") else f"{how}: {last[-1]}"
    if ended.end is End.TIMED_OUT:
        return f"{ended.end}: no end within the session's limit"
    return f"{ended.end}: {one_line(ended.detail)}" if ended.detail else str(ended.end)


def refusal_of(refused: Refused) -> str:
    """The same for what claims and judge refuse."""
    return f"refused, {refused.reason}: {SAME.get(refused.reason) or one_line(refused.detail)}"


def checked(claims: Claims) -> dict[str, Any]:
    """The fields of a Result that a training's claims fill, its curve thinned."""
    every = max(1, math.ceil(len(claims.curve) / CURVE_POINTS))
    points = [*claims.curve[:-1:every], *claims.curve[-1:]]
    return {
        "steps": claims.steps,
        "tokens": claims.tokens,
        "params_m": claims.params_m,
        "seconds": claims.seconds,
        "memory_gb": claims.memory_gb,
        "curve": tuple(point for point in points if math.isfinite(point[1])),
    }


def subset(split: PackedSplit, rows: int) -> PackedSplit:
    """`rows` rows of `split`, the same for the same split, as a split: documents count with what lies in these rows."""
    count = len(split.rows)
    if rows >= count or split.pieces is None:
        return split
    order = Permutation(count, int(digest(split.manifest)[:15], 16))
    chosen = sorted(order[place] for place in range(rows))
    place = {row: index for index, row in enumerate(chosen)}
    kept = [index for index, row in enumerate(split.pieces.row) if int(row) in place]
    pieces = Pieces(*(column[kept] for column in split.pieces))
    moved = pieces._replace(row=pieces.row.copy())
    moved.row[:] = [place[int(row)] for row in pieces.row]
    return PackedSplit(split.folder, {**split.manifest, "rows": rows}, split.rows[chosen], moved)


def kept(laboratory: Laboratory) -> Laboratory:
    """`laboratory` that does nothing twice, and keeps the result durably before anybody sees it."""

    def run(job: Experiment, worker: Worker) -> Result:
        there = kept_result(job)
        if there is None:
            job.folder.mkdir(parents=True, exist_ok=True)
            there = laboratory(job, worker)
            atomic.write_json(result_file(job), there.as_json())
        return there

    return run


def patient(laboratory: Laboratory, *, attempts: int = ATTEMPTS, wait_s: float = WAIT_S) -> Laboratory:
    """`laboratory` that tries again when the world failed; what had been trained goes on. The last failure passes."""

    def run(job: Experiment, worker: Worker) -> Result:
        for attempt in range(1, attempts):
            try:
                return laboratory(job, worker)
            except InfrastructureError:
                if worker.stopping.wait(wait_s * attempt):
                    raise StoppedError from None
        return laboratory(job, worker)

    return run


def tidy(folder: Path, keep_model: bool) -> None:
    """Free what a finished experiment no longer needs: its checkpoints, and its model unless it may be judged again."""
    for name in ("runs", *(() if keep_model else ("trained/model",))):
        if (folder / name).exists():
            shutil.rmtree(folder / name)
