"""The `iterate` section of params.yaml, and which of its keys say only when a session ends.

Knows names, units and ranges; refuses to know how a session runs.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from ratchet.loops.research.proposers import Kind
from ratchet.loops.research.proposers.command import CommandParams
from ratchet.loops.research.proposers.llm import PORTABLE as LLM_PORTABLE
from ratchet.loops.research.proposers.llm import LlmParams
from ratchet.loops.research.proposers.replay import ReplayParams
from ratchet.loops.research.proposers.search import SearchParams
from ratchet.params import Params
from ratchet.train.parameters import TrainParams

PORTABLE = ("experiments", "hours", "money")
"""Keys that decide when a session ends, not what its experiments are: raised, a finished session goes on."""


class LimitParams(Params):
    """What the sandbox lets one training use."""

    baseline_seconds: float = Field(3600.0, gt=0, strict=False, description="seconds one baseline training may take")
    factor: float = Field(
        3.0, gt=1, strict=False, description="a candidate's training may take the baseline's longest times this"
    )
    floor_seconds: float = Field(60.0, gt=0, strict=False, description="and never less than so many seconds")
    memory_mb: int = Field(8192, ge=256, description="memory of one training or logits server, MiB")
    processes: int = Field(128, ge=8, description="processes and threads of one training")
    judge_seconds: float = Field(1800.0, gt=0, strict=False, description="seconds one judging may take")


class GateParams(Params):
    """When a candidate is kept: docs/research.md."""

    confidence: float = Field(
        0.95, ge=0.5, lt=1, description="one-sided level of the threshold t(confidence, seeds - 1) * sqrt(2) * sd"
    )
    tie: float = Field(0.1, ge=0, le=1, strict=False, description="a difference up to this many sd is a tie")
    fewer_lines: int = Field(3, ge=1, description="a tie with so many lines fewer is kept as simpler")


class IterateParams(Params):
    """The `iterate` section of params.yaml."""

    tag: str | None = Field(None, description="names the branch ratchet/<tag>; null = the start of the fingerprint")
    seed: int = Field(1, ge=0, description="seed of the proposer, of fresh confirmation seeds and of the bootstrap")
    experiments: int = Field(6, ge=0, description="candidates tried beside the baseline")
    hours: float | None = Field(None, gt=0, strict=False, description="no further round after so many; null = no cap")
    money: float | None = Field(None, gt=0, strict=False, description="the same in money spent on proposals")
    parallel: int = Field(1, ge=1, le=64, description="candidates of one round, run at once, each on its GPU or cores")
    proposer: str = Field("search", description="who proposes: search, llm, command or replay")
    noise_seeds: int = Field(5, ge=2, description="seeds of the baseline that measure the noise")
    judged_rows: int | None = Field(
        None, ge=1, description="rows of the validation split that the judge asks for, chosen by hash; null = all"
    )
    batch_rows: int = Field(4, ge=1, description="rows the judge asks for at once: speed only")
    train: TrainParams = Field(description="as the section `train`, with a horizon of its own")
    limits: LimitParams = Field(default_factory=LimitParams, description="what the sandbox allows")  # pyright: ignore[reportArgumentType]
    gate: GateParams = Field(default_factory=GateParams, description="when a candidate is kept")  # pyright: ignore[reportArgumentType]
    search: SearchParams = Field(default_factory=SearchParams, description="the proposer search")  # pyright: ignore[reportArgumentType]
    llm: LlmParams = Field(default_factory=LlmParams, description="the proposer llm")  # pyright: ignore[reportArgumentType]
    command: CommandParams = Field(default_factory=CommandParams, description="the proposer command")  # pyright: ignore[reportArgumentType]
    replay: ReplayParams = Field(default_factory=ReplayParams, description="the proposer replay")  # pyright: ignore[reportArgumentType]

    @field_validator("proposer")
    @classmethod
    def _known(cls, value: str) -> str:
        names = [kind.value for kind in Kind]
        if value not in names:
            raise ValueError(f"is none of {', '.join(names)}")
        return value

    @field_validator("train")
    @classmethod
    def _whole(cls, value: TrainParams) -> TrainParams:
        if value.stop_at is not None:
            raise ValueError("stop_at is not for candidates: each trains to its horizon")
        return value

    def defining(self) -> dict[str, Any]:
        """What of these decides a session's experiments, as JSON: of the proposers' sections the one that is used."""
        others = {kind.value for kind in Kind} - {self.proposer}
        told = self.model_dump(mode="json", exclude={*PORTABLE, *others})
        if "llm" in told:
            told["llm"] = {key: value for key, value in told["llm"].items() if key not in LLM_PORTABLE}
        return told | {"train": self.train.defining()}

    def portable(self) -> dict[str, Any]:
        """What of these may change while a session goes on, as JSON."""
        return self.model_dump(mode="json", include=set(PORTABLE))
