"""The sealed trainer: owns the clock, the step count, the data's order, the checkpoints and the history of a training.

One `drive` whose first step plans (how many optimizer steps the horizon is) and whose further steps are *segments*:
train to the next checkpoint boundary. Knows the arena only by its protocol; refuses to know models, schedules and
metrics. docs/training.md is its manual.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any, cast

from ratchet.core import atomic
from ratchet.core.budget import Budget
from ratchet.core.errors import InputError
from ratchet.core.loop import Outcome, drive
from ratchet.core.rundir import RunDirectory
from ratchet.core.seeds import derive
from ratchet.data.loader import Loader
from ratchet.train import training_state as tensors
from ratchet.train.arena import Experiment, build_experiment, check_loss, knobs, load_arena
from ratchet.train.clock import Clock
from ratchet.train.device import memory_mb, peak_flops, peak_memory_mb, prepare_process, synchronize
from ratchet.train.divergence import diverged, remembered
from ratchet.train.horizon import calibrated, progress, steps_of, stop_step
from ratchet.train.interruption import STOPPED_CODE, Interruption
from ratchet.train.plan import Plan
from ratchet.train.progress import Watch
from ratchet.train.summary import step_rows

WARM_UP_STEPS = 3
TIMED_STEPS = 10

State = dict[str, Any]


@dataclass(frozen=True)
class Ending:
    """How `train` ended: the last state, and why and with which exit code if before its stop step ("" if not)."""

    state: State
    interrupted: str
    exit_code: int


def train(plan: Plan, run: RunDirectory) -> Ending:
    """Train from where `run` stands to its stop step, committing on the way.

    Raises InputError when the arena breaks its protocol, the loss diverges, or the stop step cannot be. A signal ends
    it after the step under way, committed.
    """
    with Interruption() as interruption, Watch(run.path, interval=plan.log_interval) as watch:
        training = Training(plan, run, watch, interruption)
        budget = _Until(training=training, stop_file=run.stop_file)
        try:
            state = drive({}, training.step, store=run.store, ledger=run.ledger, budget=budget)
            training.finish(state)
        finally:
            training.close()
    return Ending(state, training.interrupted(), interruption.exit_code or STOPPED_CODE)


@dataclass(frozen=True, kw_only=True)
class _Until(Budget):
    """Ends the loop at the stop step, and after the segment in which a stop was asked for."""

    training: Training

    def exhausted(self, seq: int, rows: Iterable[Mapping[str, Any]]) -> str | None:
        """As `Budget.exhausted`; the target is computed from the committed rows."""
        if why := self.training.interrupted():
            return why
        committed = [row for row in rows if row["seq"] < seq]
        if not committed:
            return None
        target = self.training.params.stop_at or committed[0]["horizon_steps"]
        return f"step {target} is reached" if committed[-1]["step"] >= target else None


class Training:
    """One process' part of a training: the live experiment, and the committed state it stands at."""

    def __init__(self, plan: Plan, run: RunDirectory, watch: Watch, interruption: Interruption) -> None:
        self.plan, self.params, self.run, self.watch, self.ranks = plan, plan.params, run, watch, plan.ranks
        self.clock = Clock()
        self._interruption = interruption
        self._experiment: Experiment | None = None
        self._loader: Loader | None = None
        self._generators: dict[str, Any] = {}
        self._live: int | None = None  # the seq whose state the experiment is in

    # What `drive` calls

    def step(self, seq: int, state: State) -> Outcome:
        """Plan at seq 0, then one segment each."""
        self.clock.commit_ended()
        outcome = self._segment(seq, state) if seq else self._plan()
        self.run.store.labels["wandb"] = outcome.state["wandb"]
        self.clock.commit_begins()
        return outcome

    def interrupted(self) -> str:
        """Why to end before the stop step, the same on every rank, or ""."""
        return self.ranks.agreed(self._wish())

    def _wish(self) -> str:
        """Why this rank would end."""
        if self._interruption.received:
            return self._interruption.received.name
        if self.ranks.orphaned():
            return "the end of its launcher"
        return "`ratchet stop`" if self.run.stop_file.exists() else ""

    def finish(self, state: State) -> None:
        """After the last commit: bring the mirror up to date. Raises InputError when the run is past its stop step."""
        self.clock.commit_ended()
        if state:
            self._mirror(state, len(self.run.ledger.rows()))
            if not self.interrupted():
                self.plan.mirror.ended(step_rows(self.run.ledger.rows()))
            target = self.params.stop_at or state["horizon_steps"]
            if state["step"] > target:
                raise InputError(
                    self.run.path,
                    f"is at step {state['step']}, beyond train.stop_at = {target}",
                    "raise or remove stop_at, or remove the run with `ratchet runs rm`",
                )

    def close(self) -> None:
        """Stop the loader's thread and the mirror."""
        if self._loader:
            self._loader.close()
        self.plan.mirror.close(self._interruption.exit_code)

    # Planning

    def _plan(self) -> Outcome:
        """Fix the number of optimizer steps, before the first trained one. The state is that of a fresh experiment."""
        experiment = self._built()
        per_step = experiment.batch_rows * experiment.accumulation
        tokens_per_step = per_step * self.plan.split.sequence_len
        horizon, rows = self.params.horizon, len(self.plan.split.rows)
        steps = steps_of(horizon, tokens_per_step=tokens_per_step, rows_per_step=per_step, rows_per_epoch=rows)
        calibration = None
        if steps is None:
            seconds = self.ranks.from_first(self._rehearse(WARM_UP_STEPS + TIMED_STEPS)[WARM_UP_STEPS:])
            steps = calibrated(horizon.value, seconds)
            calibration = {"step_seconds": seconds, "seconds": horizon.value}
        model = {
            "num_params": experiment.num_params(),
            "flops_per_token": experiment.flops_per_token(),
            "depth": _depth(self.plan.source),
            "tokens_per_step": tokens_per_step,
            "dtype": self.plan.dtype,
        }
        row = {"step": 0, "horizon_steps": steps, "calibration": calibration, "rows": []}
        state = {"step": 0, "tokens": 0, "position": 0, "recent_losses": [], "horizon_steps": steps, "model": model,
                 "wandb": self.plan.wandb, "timing": self._timing()}  # fmt: skip
        self._live = 1
        return Outcome(state, row)

    def _built(self) -> Experiment:
        """The experiment, fresh from its seed when this process has none yet, compiled and warm if it is to be."""
        if self._experiment:
            return self._experiment
        begun = perf_counter()
        plan = self.plan
        prepare_process(plan.device, strict=self.params.compile)
        self.clock.peak_flops = peak_flops(plan.device, plan.dtype)
        atomic.write_text(self.run.path / "arena.py", plan.source)
        self._experiment = self._fresh()
        self.clock.startup_seconds += perf_counter() - begun
        if self.params.compile:
            self._rehearse(WARM_UP_STEPS)
        return self._experiment

    def _fresh(self) -> Experiment:
        tensors.seed_generators(self.ranks.seed(self.params.seed))
        experiment = build_experiment(load_arena(self.run.path / "arena.py"), self.plan.spec())
        self._spread(experiment)
        self._generators = tensors.capture_generators(self.plan.device)
        return experiment

    def _spread(self, experiment: Experiment) -> None:
        """Let every rank stand where rank 0 does."""
        if self.ranks.size > 1:
            experiment.load_state_dict(self.ranks.spread(experiment.state_dict()))

    def _rehearse(self, steps: int) -> list[float]:
        """Run `steps` real steps from the start of the data and throw their state away; the seconds of each.

        For compiling and calibration. Raises InputError when it takes longer than `startup_limit_s`.
        """
        experiment, begun, seconds = cast(Experiment, self._experiment), perf_counter(), list[float]()
        initial = tensors.clone(experiment.state_dict())
        loader = self._new_loader(experiment, 0)
        try:
            for _ in range(steps):
                start = perf_counter()
                self._optimize(experiment, loader, 0.0)
                seconds.append(perf_counter() - start)
                if self.clock.startup_seconds + perf_counter() - begun > self.params.startup_limit_s:
                    raise InputError(
                        "train",
                        f"start-up ran into train.startup_limit_s = {self.params.startup_limit_s:g} s "
                        f"after {len(seconds)} of {steps} warm-up steps",
                        "raise the limit, or set train.compile to false",
                    )
        finally:
            loader.close()
        self._reset(initial)
        self.clock.startup_seconds += perf_counter() - begun
        return seconds

    def _reset(self, initial: tensors.Tensors) -> None:
        """Back to `initial` after a rehearsal, exactly; an arena that cannot go back is built anew."""
        experiment = cast(Experiment, self._experiment)
        experiment.load_state_dict(initial)
        if not tensors.same(experiment.state_dict(), initial):
            self._experiment = experiment = None
            gc.collect()
            self._experiment = self._fresh()
        tensors.restore_generators(self._generators, self.plan.device)

    # Segments

    def _segment(self, seq: int, state: State) -> Outcome:
        """Train from the committed `state` to the next boundary."""
        self._mirror(state, seq)
        experiment = self._match(seq, state)
        constant = getattr(experiment, "constant_schedule", False)
        stop = stop_step(self.params.stop_at, state["horizon_steps"], constant_schedule=constant)
        self.watch.aim(stop)
        state, rows, begun = dict(state), list[dict[str, Any]](), perf_counter()
        while not rows or not self._at_boundary(rows[-1]["step"], stop, begun):
            rows.append(self._train_step(experiment, state))
        self._generators = tensors.capture_generators(self.plan.device)
        self.ranks.refuse_drift(experiment.state_dict() if self.ranks.size > 1 else {}, self.run.path / "arena.py")
        self._live = seq + 1
        state |= {"timing": self._timing(), "wandb": state["wandb"] or self.plan.wandb}
        row, score = {"step": state["step"], "rows": rows}, median(state["recent_losses"])
        return Outcome(state, row, self._blobs(experiment, self.ranks.gather(self._generators)), score)

    def _at_boundary(self, step: int, stop: int, begun: float) -> bool:
        checkpoint = self.params.checkpoint
        if step >= stop:
            return True
        if checkpoint.every_steps and step % checkpoint.every_steps == 0:
            return True
        late = perf_counter() - begun >= self.clock.interval(checkpoint.every_seconds)
        return self.ranks.any(late or bool(self._wish()))

    def _match(self, seq: int, state: State) -> Experiment:
        """Make the live experiment, loader and generators stand at `state`, which is checkpoint `seq`."""
        experiment = self._built()
        if self._live != seq:
            self.clock.take_over(state["timing"])
            if state["step"]:
                self._load(experiment)
            self.watch.say(f"train: continues {self.run.path} at step {state['step']} of {state['horizon_steps']}")
        if not self._loader:
            self._loader = self._new_loader(experiment, state["position"])
        tensors.restore_generators(self._generators, self.plan.device)
        return experiment

    def _load(self, experiment: Experiment) -> None:
        """Let every rank stand at the committed checkpoint, which rank 0 reads."""
        kept = self.ranks.from_first({} if self.ranks.rank else self._read(experiment))
        self._spread(experiment)
        generators = kept.get("ranks", [kept])
        self._generators = generators[self.ranks.rank % len(generators)]

    def _read(self, experiment: Experiment) -> dict[str, Any]:
        """Load the committed checkpoint; returns what it keeps of random generators."""
        store, device = self.run.store, self.plan.device.torch_name
        loaded = tensors.load_tensors(store.blob(tensors.MODEL_FILE), device)
        loaded |= tensors.load_tensors(store.blob(tensors.OPTIMIZER_FILE), device)
        try:
            experiment.load_state_dict(loaded)
        except (KeyError, ValueError, RuntimeError) as error:
            do = "the arena's load_state_dict must accept what its state_dict gave; see docs/arena.md"
            raise InputError(store.path(store.seq or 0), f"does not fit the arena: {error}", do) from error
        return tensors.read_generators(store.blob(tensors.RANDOM_FILE))

    def _optimize(self, experiment: Experiment, loader: Loader, now: float) -> float:
        """One optimizer step over the next batches at progress `now`; the loss of all ranks' rows."""
        where = self.run.path / "arena.py"
        batches = [self.ranks.share(loader.next()) for _ in range(experiment.accumulation)]
        loss = check_loss(experiment.step(batches, now), where)
        self.ranks.refuse_unaveraged(where)
        return self.ranks.mean(loss)

    def _train_step(self, experiment: Experiment, state: State) -> dict[str, Any]:
        """One optimizer step; advances `state` and returns its row."""
        begun = perf_counter()
        loader = cast(Loader, self._loader)
        loss = self._optimize(experiment, loader, progress(state["step"], state["horizon_steps"]))
        metrics = experiment.metrics()
        synchronize(self.plan.device)
        seconds = perf_counter() - begun
        self.clock.training_seconds += seconds
        self._refuse_divergence(state["step"] + 1, loss, metrics, state["recent_losses"])
        tokens = state["model"]["tokens_per_step"]
        state["step"] += 1
        state["tokens"] += tokens
        state["position"] = loader.position
        state["recent_losses"] = remembered(state["recent_losses"], loss)
        row = {
            "step": state["step"],
            "tokens": state["tokens"],
            "epoch": loader.epoch,
            "loss": loss,
            "lr_scale": metrics.get("lr_scale"),
            "grad_norm": metrics.get("grad_norm"),
            "seconds": self.clock.training_seconds,
            "tokens_per_s": tokens / seconds,
            "memory_mb": memory_mb(self.plan.device),
        }
        self.watch.step(row, seconds)
        return row

    def _refuse_divergence(self, step: int, loss: float, metrics: Mapping[str, float], recent: Sequence[float]) -> None:
        if why := diverged(loss, metrics, recent, self.params.explode_ratio):
            kept = self.run.store.seq or 0
            self.run.end("stopped", f"diverged at step {step}: {why}")
            raise InputError(
                f"train, step {step}",
                f"the training has diverged: {why}",
                f"lower a learning rate of the arena (train.knobs), or raise train.explode_ratio; "
                f"the last good checkpoint is kept in {self.run.store.path(kept)}",
            )

    # Small parts

    def _new_loader(self, experiment: Experiment, position: int) -> Loader:
        seed = derive(self.params.seed, "rows")
        return Loader(self.plan.split, batch_rows=experiment.batch_rows, seed=seed, position=position)

    def _blobs(self, experiment: Experiment, generators: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """`generators`: every rank's."""
        model, optimizer = tensors.split_state(experiment.state_dict())
        random = {"ranks": generators} if len(generators) > 1 else generators[0]
        return {
            tensors.MODEL_FILE: partial(tensors.save_tensors, tensors=model),
            tensors.OPTIMIZER_FILE: partial(tensors.save_tensors, tensors=optimizer),
            tensors.RANDOM_FILE: partial(tensors.write_generators, state=random),
        }

    def _timing(self) -> dict[str, float]:
        self.clock.peak_vram_mb = max(self.clock.peak_vram_mb, peak_memory_mb(self.plan.device))
        return self.clock.as_json()

    def _mirror(self, state: State, seq: int) -> None:
        """Show W&B the committed rows: those before `seq`."""
        self.plan.mirror.send(state["wandb"], step_rows(self.run.ledger.rows()[:seq]))


def _depth(source: str) -> int:
    knob = knobs(source).get("DEPTH")
    return int(knob.value) if knob else 0
