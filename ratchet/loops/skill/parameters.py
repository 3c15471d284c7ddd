"""The `skill` section of params.yaml: every knob under its published name, and which of them a resume may change.

Knows names, units and ranges; refuses to know how training is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from ratchet.llm.endpoint import WHERE, Endpoint
from ratchet.loops.skill.gate import Metric, Rule
from ratchet.loops.skill.schedule import Scheduler
from ratchet.loops.skill.update import Mode
from ratchet.params import Params

ALIASES = {
    "minibatch": "minibatch_size",
    "merge_batch": "merge_batch_size",
    "lr": "learning_rate",
    "edit_budget": "learning_rate",
    "min_lr": "min_learning_rate",
    "min_edit_budget": "min_learning_rate",
    "lr_sched": "lr_scheduler",
    "epochs": "num_epochs",
    "skill_update_mode": "update_mode",
}
"""The short names of the field → the published ones. `limit` and `workers` are the same in both."""

PORTABLE = ("stop_at", "extend_epochs", "workers")
"""Keys that decide when and how fast a run goes, never what a step computes: they are left out of its identity."""


class Source(StrEnum):
    """Where tasks come from."""

    PACKAGE = "package"
    FILE = "file"
    CLASS = "class"


class TaskParams(Params):
    """Which tasks, and how they are split."""

    source: Source = Field(Source.PACKAGE, strict=False, description="package | file | class: which key below is read")
    package: Literal["elements", "capitals"] = Field("elements", description="facts from an installed package")
    file: str = Field("skills/tasks.jsonl", description="JSON lines {id, question, answers}, below skills/")
    python: str = Field("skills/my_tasks.py:Tasks", description="FILE:CLASS with the methods tasks() and score()")
    val_size: int = Field(26, ge=1, description="tasks that the gate sees; split by the hash of the question")
    test_size: int = Field(64, ge=1, description="tasks that are looked at once, at the end; the rest is for training")
    split_seed: int = Field(0, ge=0, description="salts the hash of the split")


class Role(Endpoint):
    """Who answers as one role: a model at an endpoint, or without `model` the embedded one, which needs no key."""

    temperature: float | None = Field(0.0, ge=0, strict=False, description="0 = greedy; null leaves it to the endpoint")
    seed: int | None = Field(None, ge=0, description="sent with each request; null = none")

    @property
    def embedded(self) -> bool:
        """Whether it runs in this process."""
        return self.model is None

    @model_validator(mode="after")
    def _names_a_model(self) -> Role:
        if self.model is None and self.base_url is not None:
            raise ValueError("base_url is set without a model: name the model too, or neither for the embedded one")
        return self

    def defining(self) -> dict[str, Any]:
        """What decides its replies. Where it is, what it costs and what it may spend does not."""
        return self.model_dump(mode="json", exclude=set(WHERE))


class TargetRole(Role):
    """The frozen agent whose instructions are trained."""

    max_tokens: int = Field(256, ge=1, description="tokens of one reply, at most, reasoning included")
    batch_items: int = Field(16, ge=1, description="questions that the embedded model answers at once")
    max_new_tokens: int = Field(12, ge=1, description="tokens of one answer of the embedded model, at most")


class OptimizerRole(Role):
    """Who proposes the edits."""

    max_tokens: int = Field(4096, ge=1, description="tokens of one reply, at most, reasoning included")


class SkillParams(Params):
    """The `skill` section of params.yaml."""

    seed: int = Field(42, ge=0, description="of the order of tasks, minibatches and samples")
    skill_init: str | None = Field(None, description="seed document below skills/; null = an empty one")
    tasks: TaskParams = Field(default_factory=TaskParams, description="what is trained on, gated by, tested with")  # pyright: ignore[reportArgumentType]
    target: TargetRole = Field(default_factory=TargetRole, description="the frozen agent")  # pyright: ignore[reportArgumentType]
    optimizer: OptimizerRole = Field(default_factory=OptimizerRole, description="who proposes edits")  # pyright: ignore[reportArgumentType]

    num_epochs: int = Field(2, ge=1, description="passes over the training tasks: the horizon")
    train_size: int | None = Field(
        None, ge=0, description="training tasks; null = all; 0 = check everything, call none"
    )
    limit: int | None = Field(None, ge=1, description="tasks of each split, at most; null = all")
    batch_size: int = Field(40, ge=1, description="training tasks of one rollout")
    accumulation: int = Field(1, ge=1, description="rollouts of one step")
    minibatch_size: int = Field(8, ge=1, description="rows that one reflecting call sees")
    merge_batch_size: int = Field(8, ge=2, description="patches that one merging call sees")
    failure_only: bool = Field(False, description="reflect on failures alone")
    learning_rate: int = Field(4, ge=1, description="edit budget: edits of one step, at most, at the start")
    min_learning_rate: int = Field(2, ge=1, description="edit budget at the horizon")
    lr_scheduler: Scheduler = Field(Scheduler.COSINE, strict=False, description="constant | linear | cosine")
    update_mode: Mode = Field(Mode.PATCH, strict=False, description="patch: edits one by one; rewrite: one call")
    use_rejected_edits: bool = Field(True, description="show the optimizer what the gate turned down in this epoch")
    rejected_limit: int = Field(20, ge=0, description="rejected edits kept, the newest")
    use_slow_update: bool = Field(False, description="from epoch 2: compare epochs, write a guarded block; gated")
    slow_update_samples: int = Field(20, ge=1, description="training tasks that slow_update compares")
    use_meta_skill: bool = Field(True, description="from epoch 3: lessons for the optimizer alone")
    gate: Rule = Field(Rule.PAIRED, strict=False, description="paired: knows the noise | strict: the published rule")
    gate_metric: Metric = Field(Metric.HARD, strict=False, description="hard | soft | mixed")
    gate_mixed_weight: float = Field(0.5, ge=0, le=1, strict=False, description="weight of soft in mixed")
    gate_confidence: float = Field(0.95, ge=0.5, lt=1, strict=False, description="of the paired gate, one-sided")

    workers: int = Field(8, ge=1, description="calls at once; changes no result")
    stop_at: int | None = Field(None, ge=1, description="step at which this run pauses; null = at the horizon")
    extend_epochs: int = Field(0, ge=0, description="epochs beyond the horizon, at min_learning_rate; re-tested")

    @model_validator(mode="before")
    @classmethod
    def _published_names(cls, values: Any) -> Any:
        return canonical(values) if isinstance(values, Mapping) else values

    @field_validator("min_learning_rate")
    @classmethod
    def _not_above(cls, value: int, info: Any) -> int:
        highest = info.data.get("learning_rate")
        if highest is not None and value > highest:
            raise ValueError(f"is above learning_rate {highest}")
        return value

    def defining(self) -> dict[str, Any]:
        """What of these decides a result, as JSON. Where an endpoint is and what it costs does not."""
        plain = self.model_dump(mode="json", exclude={*PORTABLE, "target", "optimizer"})
        return plain | {"target": self.target.defining(), "optimizer": self.optimizer.defining()}

    def portable(self) -> dict[str, Any]:
        """What of these a resume may change, as JSON."""
        return self.model_dump(mode="json", include=set(PORTABLE))


def canonical(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` under the published names. A short name wins over the long one, as an override lies over a file."""
    renamed = {key: value for key, value in values.items() if key not in ALIASES}
    return renamed | {ALIASES[key]: value for key, value in values.items() if key in ALIASES}
