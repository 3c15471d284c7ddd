"""The agents: who speaks with which model, their optimizers, and the untrained models they are held against.

Refuses to know tasks and rewards.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ratchet.core.errors import InputError
from ratchet.loops.team.codec import Codec
from ratchet.loops.team.concurrency import at_once
from ratchet.loops.team.moments import compact, decoded
from ratchet.loops.team.parameters import TeamConfig
from ratchet.loops.team.policy import CausalLM, Policy, load_state

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Source:
    """An untrained model and its tokenizer. Two agents of one source object start from the same weights."""

    model: Any
    tokenizer: Any


class Team:
    """`codecs[i]` and `policies[speaker[i]]` are agent i's."""

    def __init__(self, sources: Sequence[Source], config: TeamConfig) -> None:
        """`sources`: one per agent; with shared weights they must be one."""
        if config.shared_weights and len({id(source.model) for source in sources}) > 1:
            raise InputError("team.shared_weights", "true with several models", "name one model, or set it to false")
        self.config = config
        self.references: dict[int, Policy] = {}
        used = sources[:1] if config.shared_weights else sources
        self.speaker = [0 if config.shared_weights else agent for agent in range(len(sources))]
        models = [source.model for source in used]
        frozen = {id(model): copy.deepcopy(model) for model in models} if config.reference_kl_enabled else {}
        own = [model if model not in models[:place] else copy.deepcopy(model) for place, model in enumerate(models)]
        self.policies: list[Policy] = [CausalLM(model, lora=config.lora, seed=config.seed) for model in own]
        self.codecs = [
            Codec(source.tokenizer, ends=end_ids(source.model), stop=config.stop, chat_template=config.chat_template)
            for source in sources
        ]
        references = {key: CausalLM(model.requires_grad_(False)) for key, model in frozen.items()}
        if references:
            self.references = {place: references[id(model)] for place, model in enumerate(models)}
        self.optimizers = [self._optimizer(policy) for policy in self.policies]
        self._compact: dict[int, dict[str, Tensor]] = {}

    @property
    def agents(self) -> int:
        """How many there are."""
        return len(self.codecs)

    def policy(self, agent: int) -> Policy:
        """The model that `agent` speaks with."""
        return self.policies[self.speaker[agent]]

    def speakers(self, policy: int) -> list[int]:
        """The agents that speak with model number `policy`."""
        return [agent for agent, who in enumerate(self.speaker) if who == policy]

    def digest(self) -> dict[str, Any]:
        """Hashes of what the agents start from, by name."""
        return {
            "models": [self.policies[who].digest() for who in self.speaker],
            "tokenizers": [codec.digest() for codec in self.codecs],
        }

    def _optimizer(self, policy: Policy) -> torch.optim.AdamW:
        """AdamW as torch has it by default, weight decay included, as published."""
        tensors = list(policy.trainable().values())
        fused = policy.device.type in ("cpu", "cuda")
        return torch.optim.AdamW(tensors, lr=self.config.agent_learning_rate, fused=fused)

    # State

    def weights(self, policy: int) -> dict[str, Tensor]:
        """The trained tensors of one model, each once."""
        return {name: tensor.detach() for name, tensor in self.policies[policy].trainable().items()}

    def moments(self, policy: int) -> dict[str, Tensor]:
        """The state of its optimizer: `NAME.exp_avg`, `NAME.exp_avg_sq`, `NAME.step`; empty before its first step."""
        states, found = self.optimizers[policy].state, dict[str, Tensor]()
        for name, parameter in self.policies[policy].trainable().items():
            for key, tensor in states.get(parameter, {}).items():
                found[f"{name}.{key}"] = tensor
        return found

    def round_moments(self, *, keep: bool = False) -> None:
        """At an epoch's end: every moment becomes what three bytes of a checkpoint can hold (moments.py). `keep`: the
        bytes too, for the `save` that comes next."""
        self._compact = {}
        each = at_once([partial(self._compacted, policy) for policy in range(len(self.policies))])
        if keep:
            self._compact = dict(enumerate(each))

    @staticmethod
    def files(policy: int) -> tuple[str, str]:
        """The names of the files that hold one model's weights and its optimizer's state."""
        return f"model-{policy}.safetensors", f"optimizer-{policy}.safetensors"

    def save(self, policy: int, *, compact: bool = False) -> Mapping[str, Callable[[Path], None]]:
        """Writers of those files. `compact`: the moments were just rounded, so three bytes a weight hold them."""
        model, optimizer = self.files(policy)
        return {
            model: lambda path: save_file(_whole(self.weights(policy)), path),
            optimizer: lambda path: save_file(_whole(self._stored(policy, compact)), path),
        }

    def _stored(self, policy: int, compact: bool) -> dict[str, Tensor]:
        if not compact:
            return self.moments(policy)
        kept = self._compact.pop(policy, None)  # once: they take memory that the next update wants
        return self.moments(policy) | (self._compacted(policy) if kept is None else kept)

    def _compacted(self, policy: int) -> dict[str, Tensor]:
        """Both moments of each weight in three bytes, to which they are rounded."""
        moments, found = self.moments(policy), dict[str, Tensor]()
        for name in self.policies[policy].trainable():
            names = [f"{name}.{key}" for key in MOMENTS]
            if names[0] in moments:
                found |= zip(names, compact(*(moments[each] for each in names)), strict=True)
        return found

    def load(self, policy: int, model: Path, optimizer: Path) -> None:
        """Put back what `save` wrote, exactly. Raises InputError when it is another model's."""
        load_state(self.policies[policy], load_file(model), model)
        flat, states = load_file(optimizer), self.optimizers[policy].state
        states.clear()
        for name, parameter in self.policies[policy].trainable().items():
            if f"{name}.step" in flat:
                mean, squares = (flat[f"{name}.{key}"] for key in MOMENTS)
                squares = decoded(squares) if squares.dtype == torch.uint8 else squares
                kept = {"exp_avg": mean.to(parameter.dtype), "exp_avg_sq": squares.to(parameter.dtype)}
                states[parameter] = {
                    "step": flat[f"{name}.step"].to(parameter.device),
                    **{key: tensor.to(parameter.device) for key, tensor in kept.items()},
                }


def _whole(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def end_ids(model: Any) -> list[int]:
    """The ids that the model itself says end a text."""
    found: list[int] = []
    for holder in (getattr(model, "generation_config", None), getattr(model, "config", None)):
        ids = getattr(holder, "eos_token_id", None)
        found += ids if isinstance(ids, list) else [] if ids is None else [ids]
    return sorted(set(found))
