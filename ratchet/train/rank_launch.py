"""Starts the ranks of a training by torchrun's own engine, waits for them, and says in one line how they failed.

Rank 0 speaks on this process' terminal, the others into files that nobody reads unless one dies. A signal is passed on
to each, once. Refuses to know what a rank does (rank.py).
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ratchet.core.errors import InfrastructureError
from ratchet.sandbox.job import how_it_exited

MODULE = "ratchet.train.rank"
GRACE_S = 60
"""What a rank that was asked to end may take for the step under way and its commit."""

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def launch_ranks(job: Mapping[str, Any], ranks: int, wandb: str) -> None:
    """Train `job` (an ExperimentJob as JSON) in `ranks` processes on this machine.

    Raises SystemExit with the code of the rank that failed, whose last line has been shown, or 128 + the number of a
    signal that came; InfrastructureError when a rank was killed.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    with tempfile.TemporaryDirectory(prefix="ratchet-ranks-") as folder, _own_words(), _own_signals():
        file = Path(folder) / "job.json"
        file.write_text(json.dumps(job), encoding="utf-8")
        quiet = dict.fromkeys(range(1, ranks), Std.ALL)
        config = LaunchConfig(
            min_nodes=1, max_nodes=1, nproc_per_node=ranks, max_restarts=0, run_id=uuid.uuid4().hex,
            rdzv_backend="c10d", rdzv_endpoint="localhost:0", local_addr="localhost", shutdown_timeout=GRACE_S,
            logs_specs=DefaultLogsSpecs(log_dir=folder, redirects=quiet),
        )  # fmt: skip
        try:
            elastic_launch(config, sys.executable)("-m", MODULE, str(file), "--wandb", wandb)
        except SignalException as error:
            raise SystemExit(128 + error.sigval) from None
        except ChildFailedError as error:
            failed = {rank: failure.exitcode for rank, failure in error.failures.items()}
            raise _reason(failed, Path(folder)) from None


def _reason(failed: Mapping[int, int], logs: Path) -> BaseException:
    """What to raise for the ranks that `failed`, by exit code; minus a signal. Rank 0 has spoken for itself."""
    rank = culprit(failed)
    code = failed[rank]
    if code < 0:
        do = "run again: it goes on from the last checkpoint"
        return InfrastructureError("train", f"rank {rank} ended with {how_it_exited(128 - code)}", do)
    if rank:
        said = [
            line for log in logs.glob(f"**/{rank}/stderr.log") for line in log.read_text(errors="replace").split("\n")
        ]
        print(next(filter(None, reversed(said)), f"train: rank {rank} ended with exit code {code}"), file=sys.stderr)
    return SystemExit(code)


def culprit(failed: Mapping[int, int]) -> int:
    """The rank that failed for a reason of its own: not because another could not be reached any more, and not by the
    SIGTERM that the engine then sends."""

    def own(rank: int) -> tuple[bool, bool, int]:
        code = failed[rank]
        return code in (-signal.SIGTERM, InfrastructureError.exit_code), code > 0, rank

    return min(failed, key=own)


@contextmanager
def _own_words() -> Iterator[None]:
    """Silence the engine's log meanwhile: what it reports is told here in one line."""
    log = logging.getLogger("torch.distributed.elastic")
    before, nowhere = log.propagate, logging.NullHandler()
    log.addHandler(nowhere)
    log.propagate = False
    try:
        yield
    finally:
        log.propagate = before
        log.removeHandler(nowhere)


@contextmanager
def _own_signals() -> Iterator[None]:
    """Put back the handlers that the engine replaces."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
