"""The knobs of a team training under their published names, and the `team` section of params.yaml on top of them.

Knows names, units, ranges, and which of them a resume may change; refuses to know how training is done.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field, model_validator

from ratchet.params import Params

PORTABLE = ("num_train_epochs", "logging_steps", "checkpoint_interval", "checkpoint_seconds", "keep_last")
"""Keys that decide how far, how often and how loud, never what an update computes: a resume may change them."""

SECTION = "team"


class JointMode(StrEnum):
    """Which completions of the agents make one joint action."""

    ALIGNED = "aligned"
    CROSS = "cross"


class AdvantageMode(StrEnum):
    """What is taken off a return: the group's mean, nothing, its maximum, or the mean of the others."""

    MEAN = "mean"
    RAW = "raw"
    MAX = "max"
    RLOO = "rloo"


class LoraParams(Params):
    """Low-rank adapters instead of all weights (extra `team`: peft)."""

    r: int = Field(16, ge=1, description="rank")
    alpha: int = Field(32, ge=1, description="the adapters count alpha / r times")
    target_modules: list[str] = Field(
        ["q_proj", "k_proj", "v_proj", "o_proj"], min_length=1, description="linear layers that get one, by name"
    )
    last_layers: int | None = Field(
        None, ge=1, description="blocks that get one, from the top: no gradient goes below them; null = all"
    )


class TeamConfig(Params):
    """What the published trainer's config holds, by the same names; docs/team.md lists each default that differs."""

    num_agents: int = Field(2, ge=1, description="agents")
    num_turns: int = Field(2, ge=1, description="turns of an episode, at most; each joint action starts a branch")
    num_train_epochs: int = Field(20, ge=1, description="passes over the training items, of the whole run")
    num_generations: int = Field(4, ge=2, description="completions per prompt and agent: the group")
    max_new_tokens: int = Field(256, ge=1, description="tokens of a completion, at most")
    temperature: float = Field(0.6, gt=0, strict=False, description="divides the logits before a token is drawn")
    top_p: float = Field(0.6, gt=0, le=1, strict=False, description="probability that the kept tokens reach; 1 = all")
    top_k: int | None = Field(50, ge=1, description="tokens kept; null = all")
    agent_learning_rate: float = Field(5e-6, gt=0, strict=False, description="of AdamW, constant")
    logging_steps: int = Field(50, ge=1, description="env steps between two told and mirrored rows; the record has all")
    discount: float = Field(1.0, ge=0, le=1, strict=False, description="of the next turn's return")
    joint_mode: JointMode = Field(JointMode.ALIGNED, strict=False, description="aligned | cross")
    early_termination_threshold: float | None = Field(
        None, strict=False, description="a branch ends where the mean reward is above this; null = never"
    )
    external_prompt_passthrough: bool = Field(
        False, description="a transition's text is the next prompt as it is, not an item's `prompt` to be formatted"
    )
    eval_interval: int = Field(16, ge=0, description="training items between two interim evaluations; 0 = none")
    eval_num_samples: int = Field(4, ge=0, description="held-out items of an interim evaluation, one sample each")
    rollout_buffer_size: int = Field(
        2, ge=1, description="nodes (a prompt's group at one turn) that are learnt from at once"
    )
    train_batch_size: int | None = Field(
        None, ge=1, description="nodes of one optimizer step; null = the buffer's size"
    )
    advantage_normalization: bool = Field(True, description="divide by the group's standard deviation")
    advantage_mode: AdvantageMode = Field(AdvantageMode.MEAN, strict=False, description="mean | raw | max | rloo")
    reference_kl_enabled: bool = Field(False, description="take the divergence from the untrained agent off returns")
    reference_kl_coef: float = Field(0.1, ge=0, strict=False, description="how much of it")

    seed: int = Field(0, ge=0, description="of sampling, of the order in the buffer and of the evaluation")
    shared_weights: bool = Field(False, description="one model speaks for all agents")
    lora: LoraParams | None = Field(None, description="train low-rank adapters; null = all weights")
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="of models that are loaded by name")
    chat_template: bool = Field(False, description="put each prompt into the tokenizer's chat template, as the user's")
    stop: str | None = Field(None, min_length=1, description="a completion ends with the token that holds this text")
    max_grad_norm: float | None = Field(None, gt=0, strict=False, description="clip an agent's gradient; null = never")
    test_samples: int = Field(4, ge=1, description="samples of each held-out item, before and after training")
    kept_items: int = Field(4, ge=0, description="training items of each epoch whose completions are kept to read")
    generation_rows: int = Field(64, ge=1, description="completions generated at once, at most")
    micro_batch_tokens: int = Field(4096, ge=1, description="tokens of one forward and backward, at most")
    compact_moments: bool = Field(
        True, description="at an epoch's end round AdamW's moments to 3 bytes a weight, which checkpoints there hold"
    )
    checkpoint_interval: int = Field(1, ge=1, description="epochs between two checkpoints")
    checkpoint_seconds: float = Field(
        900.0, gt=0, strict=False, description="within an epoch, one after so many seconds"
    )
    keep_last: int = Field(2, ge=1, description="checkpoints kept")

    @property
    def batch_nodes(self) -> int:
        """Nodes of one optimizer step."""
        return self.train_batch_size or self.rollout_buffer_size

    def defining(self) -> dict[str, Any]:
        """What of these decides a result, as JSON."""
        return self.model_dump(mode="json", exclude=set(PORTABLE))

    def portable(self) -> dict[str, Any]:
        """What of these a resume may change, as JSON."""
        return self.model_dump(mode="json", include=set(PORTABLE))


class DataParams(Params):
    """My own task: a reward by name and items from files. Functions are `module:function` or `FILE.py:function`."""

    reward: str = Field(description="takes one list of completions per agent, gives a list of numbers")
    train: str = Field(description="JSON lines, each an item with a `prompt`, or a folder of the library `datasets`")
    evaluation: str = Field(description="the same, held out")
    formatters: list[str] | None = Field(
        None, description="one for all or one per agent: item → prompt; null = `prompt`"
    )
    external_transition: str | None = Field(None, description="what was said → the next prompts; for num_turns > 1")


class TeamParams(TeamConfig):
    """The `team` section of params.yaml."""

    model: str | list[str] = Field(
        "smollm2", description="smollm2 | tiny | a folder or name of a causal LM | arena:FOLDER; a list: one per agent"
    )
    task: str | None = Field(
        "helper", description="helper | stories | hanabi | a function that makes a task; null = the section `data`"
    )
    data: DataParams | None = Field(None, description="my own reward and items, where task is null")
    train_items: int = Field(0, ge=0, description="items that a shipped task trains on; 0 = all that are left")
    eval_items: int = Field(64, ge=0, description="items that it holds out")
    publish_agents: bool = Field(True, description="put the trained weights into data/team/agents")

    @model_validator(mode="after")
    def _names_one_task(self) -> TeamParams:
        if (self.task is None) == (self.data is None):
            raise ValueError("task and data: name a task, or set it to null and fill in data")
        return self

    @property
    def models(self) -> list[str]:
        """One name per agent."""
        return [self.model] * self.num_agents if isinstance(self.model, str) else list(self.model)

    def defining(self) -> dict[str, Any]:
        """As TeamConfig's. Of model, task and data the content counts, which is hashed elsewhere: a folder may move."""
        elsewhere = {"model", "task", "data", "train_items", "eval_items", "publish_agents"}
        return self.model_dump(mode="json", exclude={*PORTABLE, *elsewhere})
