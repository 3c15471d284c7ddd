"""Who runs experiments: threads of this process, each of which may wait for a machine elsewhere (pool.py).

Knows jobs that travel as JSON and results that come back as JSON; refuses to know what a job does. Imports no flow.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

POLL_S = 0.1


class StoppedError(Exception):
    """The session was asked to end while this experiment ran; what it had trained is kept in its folder."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One training of one arena with one seed, and its judging on one split. `folder`: its own, named by `key`.

    `number`: of its row; `what`: what it is for, in words. `train`: the `train` section. `judged_rows` None = all.
    All paths are absolute.
    """

    key: str
    number: int
    what: str
    folder: Path
    source: str
    train: Mapping[str, Any]
    rows: Path
    tokenizer: Path
    split: Path
    judged_rows: int | None
    batch_rows: int
    judge_limit_s: float
    seconds: float
    memory_mb: int
    processes: int
    session: str = ""

    def as_json(self) -> dict[str, Any]:
        """For another process."""
        return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()}

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Experiment:
        """Back from JSON."""
        paths = {name: Path(told[name]) for name in ("folder", "rows", "tokenizer", "split")}
        return cls(**{**told, **paths})


@dataclass(frozen=True, kw_only=True)
class Result:
    """How an experiment ended. `val_bpb` None: it crashed and `reason` says how.

    `documents`: the judge's table (document, tokens, bytes, nats), a parquet file in the experiment's folder; "" for a
    crash. `curve`: (step, loss). `said`: its last printed lines, untrusted.
    """

    val_bpb: float | None
    reason: str
    isolation: str
    documents: str = ""
    steps: int | None = None
    tokens: int | None = None
    params_m: float | None = None
    seconds: float | None = None
    memory_gb: float | None = None
    curve: tuple[tuple[int, float], ...] = ()
    said: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """For the file that keeps it."""
        return asdict(self)

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Result:
        """Back from JSON."""
        curve = tuple((int(step), float(loss)) for step, loss in told["curve"])
        return cls(**{**told, "curve": curve, "said": tuple(told["said"])})


class Executor(Protocol):
    """Runs experiments, some of them at once."""

    def submit(self, job: Experiment) -> Future[Result]:
        """Start `job` when a worker is free. The future raises InfrastructureError when the world failed, not the job,
        and StoppedError after `stop`."""
        ...

    def stop(self) -> None:
        """End what runs soon, its training saved; futures raise StoppedError."""
        ...

    def close(self) -> None:
        """Stop, and give the workers back."""
        ...


@dataclass(frozen=True)
class Worker:
    """What one experiment sees of its executor: which of the workers it has, and whether to end."""

    place: int = 0
    stopping: threading.Event = field(default_factory=threading.Event)


Laboratory = Callable[[Experiment, Worker], Result]
"""Runs one experiment to its end, or raises as `Executor.submit` says."""


class Threads:
    """`workers` experiments at once in threads of this process; each thread only waits for sandboxed processes."""

    def __init__(self, laboratory: Laboratory, workers: int) -> None:
        self._laboratory = laboratory
        self._stopping = threading.Event()
        self._free = set(range(workers))
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="experiment")

    def submit(self, job: Experiment) -> Future[Result]:
        """See Executor."""
        return self._pool.submit(self._run, job)

    def _run(self, job: Experiment) -> Result:
        if self._stopping.is_set():
            raise StoppedError
        with self._lock:
            place = min(self._free)
            self._free.discard(place)
        try:
            return self._laboratory(job, Worker(place, self._stopping))
        finally:
            with self._lock:
                self._free.add(place)

    def stop(self) -> None:
        """See Executor."""
        self._stopping.set()

    def close(self) -> None:
        """See Executor."""
        self.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)


def result_file(job: Experiment) -> Path:
    """Where the result of `job` is kept. Its name has the judged split in it: one training may be judged on two."""
    rows = "" if job.judged_rows is None else f"-{job.judged_rows}"
    return job.folder / f"result-{job.split.name}{rows}.json"


def kept_result(job: Experiment) -> Result | None:
    """The result of `job` from an earlier time, or None: what was finished is not paid for twice."""
    path = result_file(job)
    return Result.of(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def results_of(futures: list[Future[Result]], interrupted: Callable[[], object], executor: Executor) -> list[Result]:
    """The results in the order of `futures`, whoever ends first. Raises what the first that failed raises.

    When `interrupted()` becomes true or one fails, the others are stopped; raises StoppedError in the first case.
    """
    left = set(futures)
    while left:
        done, left = wait(left, timeout=POLL_S)
        if left and (interrupted() or any(future.exception() for future in done)):
            executor.stop()
            wait(left)
            break
    failed = [error for future in futures if (error := future.exception())]
    for error in [error for error in failed if not isinstance(error, StoppedError)] or failed:
        raise error
    return [future.result() for future in futures]
