"""From parameters and packed rows to an open run, and from a run to published results.

Shared by the stage `train` and by `python arena/train.py`, so that both are one and the same run when nothing differs.
Refuses to know how training is done (trainer.py).
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import ratchet
from ratchet.core import atomic
from ratchet.core.errors import InputError
from ratchet.core.fingerprint import closure_digest, code_digest, constraints_digest, differences, tree_digest
from ratchet.core.rundir import RunDirectory, open_run, read_identity
from ratchet.data.packing import PackedSplit
from ratchet.settings import Settings
from ratchet.train import summary
from ratchet.train.device import Device, Dtype, check_compiler, exclusive, resolve_device, resolve_dtype, shared
from ratchet.train.job import ExperimentJob, Published, Request
from ratchet.train.mirror import new_identity
from ratchet.train.parameters import TrainParams
from ratchet.train.plan import Plan
from ratchet.train.rank_launch import launch_ranks
from ratchet.train.ranks import ALONE, NOWHERE, Alone, Follower, join, stand_of
from ratchet.train.trainer import Ending, train
from ratchet.train.training_mirror import TrainingMirror
from ratchet.train.training_state import MODEL_FILE

LOOP = "train"
DECIDING = "trainer.py"
"""The module whose import closure decides a training's bytes; what starts it, shows it and publishes it does not."""


@cache
def sealed_digest() -> str:
    """Hash of all of Ratchet's code that decides a training's bytes, as it is when first asked for."""
    return closure_digest([Path(__file__).with_name(DECIDING)], Path(ratchet.__file__).parents[1])


def identity(request: Request, source: str, device: Device, dtype: Dtype) -> dict[str, Any]:
    """What decides the bytes of a training, by name. `source`: the arena's text as it will run."""
    with tempfile.TemporaryDirectory() as folder:
        arena = Path(folder) / "arena.py"
        arena.write_text(source, encoding="utf-8")
        arena_digest = code_digest([arena])
    return {
        "params": request.params.defining(),
        "inputs": {"rows": tree_digest(request.rows), "tokenizer": tree_digest(request.tokenizer)},
        "code": {"arena": arena_digest, "trainer": sealed_digest()},
        "constraints": constraints_digest(),
        "device": device.identity(dtype),
    }


def train_and_publish(request: Request, outputs: Published, settings: Settings) -> None:
    """Train `request` from where its run stands, and publish to `outputs` when its stop step is reached.

    In as many processes as the settings say, or as the rank that torchrun has started this process as. Raises
    InputError, and SystemExit: 130 or 143 when a signal ended it, committed and not published; 0 of other ranks.
    """
    ranks = join()
    if settings.ranks == 1 or ranks.size > 1:
        train_as_rank(request, outputs, settings, ranks)
        if ranks.rank:
            raise SystemExit(0)  # rank 0 publishes, and says the rest
        return
    device = resolve_device(settings.device, settings.threads)
    shared(device, settings.ranks, settings.ranks - 1)  # is there a card for the last of them?
    with exclusive(shared(device, settings.ranks)):
        params = request.params.model_dump(mode="json")
        job = ExperimentJob(params=params, rows=request.rows, tokenizer=request.tokenizer, arena=request.arena,
                            runs=settings.runs, outputs=outputs)  # fmt: skip
        launch_ranks(job.as_json(), settings.ranks, settings.wandb)


def train_as_rank(
    request: Request, outputs: Published, settings: Settings, ranks: Alone = ALONE, *, hold: bool = True
) -> Ending:
    """What one process of `train_and_publish` does; a rank that is not the first publishes nothing.

    `hold`: take the device for this process alone, unless who started it has taken it for all.
    """
    device = shared(resolve_device(settings.device, settings.threads), ranks.size, ranks.local)
    dtype = resolve_dtype(request.params.dtype, device)
    if request.params.compile:
        check_compiler(device)
    source, split = request.source(), PackedSplit.load(request.rows)
    who = identity(request, source, device, dtype)
    _refuse_strangers(ranks.gather(who))
    with _opened(request.params, who, settings, ranks) as run:
        plan = Plan(
            params=request.params,
            split=split,
            source=source,
            device=device,
            dtype=dtype,
            mirror=TrainingMirror("disabled" if ranks.rank else settings.wandb, run.path, who),
            wandb=new_identity(settings),
            log_interval=settings.log_interval,
            ranks=ranks,
        )
        with exclusive(replace(device, ranks=1)) if hold else nullcontext():
            ending = train(plan, run)
        if ranks.rank == 0:
            _close(run, ending)
            _refuse_idle_adoption(run, who, ending)
            publish(run, plan, ending, outputs)
    return ending


def _refuse_strangers(identities: Sequence[dict[str, Any]]) -> None:
    """Raise InputError when the ranks do not see the same inputs, code and kind of device."""
    for rank, other in enumerate(identities):
        if changes := differences(identities[0], other):
            raise InputError("train", f"rank {rank} differs from rank 0: {changes[0]}", "give all ranks the same")


@contextmanager
def _opened(params: TrainParams, who: dict[str, Any], settings: Settings, ranks: Alone) -> Iterator[RunDirectory]:
    """The run of identity `who` or, to a rank that is not the first, the stand-in of it."""
    if ranks.rank:
        with tempfile.TemporaryDirectory(prefix="ratchet-rank-") as folder:
            yield cast(RunDirectory, Follower(Path(folder), *ranks.from_first(NOWHERE)))
        return
    with _open(params, who, settings) as run:
        if ranks.size > 1:
            ranks.from_first(stand_of(run))
        yield run


def _open(params: TrainParams, who: dict[str, Any], settings: Settings) -> RunDirectory:
    """The run of identity `who`, or the one that the settings say must continue."""
    return open_run(
        LOOP,
        who,
        params.portable(),
        runs=settings.runs,
        resume=settings.resume,
        run=settings.resume_run,
        adopt_code=settings.adopt_code,
        allow_inexact=settings.allow_inexact,
        keep_last=params.checkpoint.keep_last,
        keep_best=params.checkpoint.keep_best,
    )


def _close(run: RunDirectory, ending: Ending) -> None:
    """Mark how the run ended; when it was interrupted say how to go on, and end the process."""
    step, horizon = ending.state.get("step", 0), ending.state.get("horizon_steps", "?")
    if ending.interrupted:
        run.end("stopped", f"{ending.interrupted} after step {step} of {horizon}")
        print(
            f"train: stopped by {ending.interrupted} after step {step} of {horizon}, which is saved in {run.path}; "
            f"continue with `dvc repro` or `ratchet resume {run.path}`",
            file=sys.stderr,
            flush=True,
        )
        raise SystemExit(ending.exit_code)
    if step < horizon:
        run.end("stopped", f"train.stop_at: step {step} of {horizon}")
    else:
        run.end("finished", f"step {step} of {horizon}")


def _refuse_idle_adoption(run: RunDirectory, who: dict[str, Any], ending: Ending) -> None:
    """Raise InputError when a change was accepted and then nothing trained under it: the run is still what it was, and
    publishing would put its weights beside a source that did not make them."""
    changes = differences(read_identity(run.path)["identity"], atomic.plain(who, LOOP))
    if changes:
        what = (
            f"is at its stop, step {ending.state['step']}: nothing is left to train under the changed {changes[0].key}"
        )
        raise InputError(run.path, what, "raise train.stop_at, or undo the change")


def publish(run: RunDirectory, plan: Plan, ending: Ending, outputs: Published) -> None:
    """Write the results of `run` at its newest checkpoint to `outputs`, each whole or not at all."""
    rows = summary.step_rows(run.ledger.rows())
    spec = plan.spec()
    with atomic.output_folder(outputs.model) as folder:
        shutil.copyfile(run.store.blob(MODEL_FILE), folder / "model.safetensors")
        (folder / "arena.py").write_text(plan.source, encoding="utf-8")
        described = {name: getattr(spec, name) for name in ("vocab_size", "sequence_len", "dtype", "compile", "seed")}
        atomic.write_json(folder / "spec.json", described)
    summary.write_history(outputs.history, rows)
    summary.write_timing(outputs.timing, rows, summary.timing(ending.state))
    atomic.write_json(outputs.metrics, summary.metrics(ending.state, rows))
