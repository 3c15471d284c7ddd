"""A causal language model as the loop needs it: go on from prompts with a cache, and hidden states of whole sequences.

Knows Hugging Face's models; refuses to know texts, rewards and optimizers. Always in evaluation mode: dropout would
make the probability that is learnt from another one than the token was drawn with.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ratchet.core.errors import InputError
from ratchet.loops.team.head import weighted_nll, weighted_nll_of_logits
from ratchet.loops.team.parameters import LoraParams

FEW_ROWS = 16
"""Rows up to which weights @ rows is the faster product."""
LORA_INSTALL = "pip install -c constraints.txt -e '.[team]', or set team.lora to null"


class Rows(Protocol):
    """Completions that are being written, one token of each row at a time."""

    logits: Tensor
    """Of the next token [rows, V]."""

    def step(self, tokens: Tensor) -> None:
        """Append one token per row."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows alone."""
        ...


@dataclass(frozen=True)
class Batch:
    """Completions of a few prompts. `owner[r]`: the prompt of completion r; `weights[r]`: its tokens' coefficient."""

    prompts: Sequence[Sequence[int]]
    owner: Sequence[int]
    completions: Sequence[Sequence[int]]
    weights: Sequence[float]


class Policy(Protocol):
    """What generates and what is trained. `context`: positions it has, None = no limit."""

    context: int | None
    device: torch.device
    dtype: torch.dtype

    def trainable(self) -> dict[str, nn.Parameter]:
        """Every trained tensor once, by name."""
        ...

    def begin(self, prompts: Sequence[Sequence[int]], copies: int) -> Rows:
        """`copies` rows for each prompt, side by side."""
        ...

    def nll(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """(Σ coefficient · −log p, log p, entropy) of the batch's completion tokens, row by row."""
        ...

    def digest(self) -> str:
        """Hash of the weights and of what the model is."""
        ...


class CausalLM:
    """A Hugging Face causal LM, or one with the same signature."""

    def __init__(self, model: Any, *, lora: LoraParams | None = None, seed: int = 0) -> None:
        self.model, self._lora = model.eval(), lora
        first = next(model.parameters())
        self.device, self.dtype = first.device, first.dtype
        self.context: int | None = getattr(model.config, "max_position_embeddings", None)
        self._digest = digest_of(model)  # before adapters: what the run started from
        if lora is not None:
            add_adapters(model, lora, seed)
        self._head = plain_head(model)
        if self.device.type == "cpu":
            widen_products(model)

    def digest(self) -> str:
        """See Policy."""
        return self._digest

    def trainable(self) -> dict[str, nn.Parameter]:
        """See Policy. Tied tensors appear under their first name."""
        return {name: tensor for name, tensor in self.model.named_parameters() if tensor.requires_grad}

    def begin(self, prompts: Sequence[Sequence[int]], copies: int) -> CachedRows:
        """See Policy."""
        return CachedRows(self.model, prompts, copies)

    def nll(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """See Policy. A prompt is read once for all its completions; what is right of a token is never seen by it."""
        targets = torch.tensor([token for ids in batch.completions for token in ids], device=self.device)
        weights = [weight for ids, weight in zip(batch.completions, batch.weights, strict=True) for _ in ids]
        dtype = torch.promote_types(torch.float32, self.dtype)
        coefficients = torch.tensor(weights, dtype=dtype, device=self.device)
        if self._head is None:
            return weighted_nll_of_logits(self._logits(batch), targets, coefficients)
        return weighted_nll(self._hidden(batch), self._head.weight, self._head.bias, targets, coefficients)

    def _hidden(self, batch: Batch) -> Tensor:
        """The last hidden state [N, H] before each completion token: of its prompt's last token for the first one."""
        ids, mask, positions = left_padded(batch.prompts, self.device)
        padded = bool((mask == 0).any())
        read = self.model.base_model(
            input_ids=ids, attention_mask=mask if padded else None, position_ids=positions, use_cache=True
        )
        owner = torch.tensor(batch.owner, device=self.device)
        states = read.last_hidden_state[owner, -1:]
        longest = max(map(len, batch.completions)) - 1
        if longest:
            rows = [[*said[:-1], *[0] * (longest + 1 - len(said))] for said in batch.completions]
            said = torch.tensor(rows, device=self.device)
            read.cache.batch_select_indices(owner)
            after = torch.cat([mask[owner], torch.ones_like(said)], -1) if padded else None
            places = positions[owner, -1:] + 1 + torch.arange(longest, device=self.device)
            out = self.model.base_model(
                input_ids=said, attention_mask=after, position_ids=places, cache=read.cache, use_cache=True
            )
            states = torch.cat([states, out.last_hidden_state], 1)
        return states[_places(batch, self.device)]

    def _logits(self, batch: Batch) -> Tensor:
        """Logits [N, V] of the completion tokens, each sequence read as a whole."""
        whole = [[*batch.prompts[owner], *said] for owner, said in zip(batch.owner, batch.completions, strict=True)]
        longest = max(map(len, whole))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in whole], device=self.device)
        rows, places = _places(batch, self.device)
        starts = torch.tensor([len(batch.prompts[owner]) for owner in batch.owner], device=self.device)
        columns = starts[rows] + places - 1
        first = int(columns.min())
        kept = torch.arange(first, longest - 1, device=self.device)
        logits = self.model(input_ids=ids, use_cache=False, logits_to_keep=kept).logits
        return logits[rows, columns - first]


def left_padded(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, mask and positions [P, L] of prompts that all end in the last column; padding has id 0 and mask 0."""
    longest = max(map(len, prompts))
    pads = [longest - len(ids) for ids in prompts]
    ids = torch.tensor([[0] * pad + list(ids) for pad, ids in zip(pads, prompts, strict=True)], device=device)
    mask = torch.tensor([[0] * pad + [1] * (longest - pad) for pad in pads], device=device)
    return ids, mask, (mask.cumsum(-1) - 1).clamp(min=0)


def _places(batch: Batch, device: torch.device) -> tuple[Tensor, Tensor]:
    """Row and place of every completion token."""
    rows = [row for row, said in enumerate(batch.completions) for _ in said]
    places = [place for said in batch.completions for place in range(len(said))]
    return torch.tensor(rows, device=device), torch.tensor(places, device=device)


class CachedRows:
    """Rows with keys and values kept. A prompt is read once, whatever the number of its copies; prompts of different
    lengths are padded on the left, masked, and have the positions that they have alone."""

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]], copies: int) -> None:
        self._model = model
        device = next(model.parameters()).device
        ids, mask, positions = left_padded(prompts, device)
        padded = bool((mask == 0).any())
        self._mask = mask.repeat_interleave(copies, 0) if padded else None
        out = model(
            input_ids=ids, attention_mask=mask if padded else None, position_ids=positions, use_cache=True,
            logits_to_keep=1,
        )  # fmt: skip
        self._cache = out.cache
        self._next = (positions[:, -1:] + 1).repeat_interleave(copies, 0)
        self.logits = out.logits[:, -1].repeat_interleave(copies, 0)
        if copies > 1:
            self._cache.batch_repeat_interleave(copies)

    def step(self, tokens: Tensor) -> None:
        """See Rows."""
        if self._mask is not None:
            self._mask = torch.cat([self._mask, self._mask.new_ones(len(tokens), 1)], -1)
        out = self._model(
            input_ids=tokens[:, None], attention_mask=self._mask, position_ids=self._next,
            cache=self._cache, use_cache=True, logits_to_keep=1,
        )  # fmt: skip
        self._next = self._next + 1
        self.logits = out.logits[:, -1]

    def keep(self, rows: Tensor) -> None:
        """See Rows."""
        self._cache.batch_select_indices(rows)
        self._next, self.logits = self._next[rows], self.logits[rows]
        if self._mask is not None:
            self._mask = self._mask[rows]


def digest_of(model: Any) -> str:
    """Hash of a model's configuration and of every weight's name, shape, dtype and bytes; a tied one counts once."""
    config = model.config.to_dict() if hasattr(model, "config") else {}
    kept = {key: value for key, value in config.items() if not key.startswith("_") and key != "transformers_version"}
    found = hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode())
    for name, tensor in sorted([*model.named_parameters(), *model.named_buffers()]):
        found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        found.update(memoryview(tensor.detach().cpu().contiguous().view(torch.uint8).reshape(-1).numpy()))
    return found.hexdigest()


def plain_head(model: Any) -> nn.Linear | None:
    """The model's last layer when its logits are that layer of the last hidden state and nothing else, found out by
    trying; None when they are not (a soft cap, a scale) and the logits have to be asked for."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if not isinstance(head, nn.Linear):
        return None
    ids = torch.tensor([[1, 2, 3]], device=head.weight.device) % head.out_features
    with torch.no_grad():
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        same = torch.equal(head(hidden), model(input_ids=ids, use_cache=False).logits)
    return head if same else None


def widen_products(model: Any) -> None:
    """Let linear layers multiply few rows as weights @ rows instead of rows @ weights while nothing is learnt: the same
    numbers but for their last bits, and faster on AVX2."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.forward = partial(_linear, module)


def _linear(layer: nn.Linear, input: Tensor) -> Tensor:
    """`layer` of `input` [..., K]."""
    if torch.is_grad_enabled() or input.numel() > FEW_ROWS * input.size(-1):
        return F.linear(input, layer.weight, layer.bias)
    product = (layer.weight @ input.reshape(-1, input.size(-1)).T).T
    product = product if layer.bias is None else product + layer.bias
    return product.view(*input.shape[:-1], -1)


def add_adapters(model: Any, lora: LoraParams, seed: int) -> None:
    """Put low-rank adapters into `model` and freeze the rest. Raises InputError without peft or for unknown layers."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise InputError("team.lora", "package peft is not installed", LORA_INSTALL) from None
    blocks = getattr(model.config, "num_hidden_layers", 0)
    chosen = None if lora.last_layers is None else list(range(blocks))[-lora.last_layers :]
    config = LoraConfig(
        r=lora.r, lora_alpha=lora.alpha, target_modules=list(lora.target_modules), lora_dropout=0.0,
        layers_to_transform=chosen,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            inject_adapter_in_model(config, model)
        except ValueError as error:
            raise InputError("team.lora.target_modules", str(error).split(".")[0], "name the model's layers") from None


def load_state(policy: Policy, state: Mapping[str, Tensor], where: object) -> None:
    """Put `state` into the trained tensors. Raises InputError when names or shapes differ."""
    own = policy.trainable()
    wrong = sorted(own.keys() ^ state.keys()) or [name for name in own if own[name].shape != state[name].shape]
    if wrong:
        raise InputError(where, f"does not fit the model at {wrong[0]!r}", "use the model that it was trained from")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(state[name])
