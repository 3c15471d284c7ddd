"""A model of our own arena with the signature of a Hugging Face causal LM, so that it can be an agent.

Knows the shape of arena/train.py: a stream, a `head`, a soft cap. Whether a model has it is found out by asking: its
own `logits` must agree. It has no cache of keys and values, so every token reads its row anew: for small models.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from ratchet.core.errors import InputError
from ratchet.data.tokenizer import Tokenizer
from ratchet.loops.team.team import Source
from ratchet.train.arena import Spec, build_experiment, load_arena

TOKENIZER = Path("data/tokenizer")
TOLERANCE = 1e-4
"""In logits, between the model's own and those with a gradient: the same arithmetic in another order."""


@dataclass
class Written:
    """Rows so far, from their first token on, without padding: what stands for a cache."""

    rows: list[list[int]]

    def batch_repeat_interleave(self, copies: int) -> None:
        """Each row so many times."""
        self.rows = [list(row) for row in self.rows for _ in range(copies)]

    def batch_select_indices(self, places: Tensor) -> None:
        """These rows alone."""
        self.rows = [self.rows[place] for place in places.tolist()]


class ArenaLM(nn.Module):
    """`experiment` of the arena `module`, callable as `CausalLM` calls a model."""

    def __init__(self, experiment: Any, cap: float, context: int, bos: int) -> None:
        super().__init__()
        self.experiment, self.cap = experiment, cap
        self.stream: nn.Module = experiment.model
        self.config = SimpleNamespace(
            max_position_embeddings=context, eos_token_id=bos, to_dict=lambda: {"arena": True, "cap": cap}
        )

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Written | None = None,
        use_cache: bool = False,
        logits_to_keep: Any = 0,
    ) -> SimpleNamespace:
        """`logits` of the last position of each row with `use_cache`, else of the positions `logits_to_keep`."""
        if not use_cache:
            logits = self._logits(input_ids)
            return SimpleNamespace(logits=logits[:, logits_to_keep] if isinstance(logits_to_keep, Tensor) else logits)
        written = _extended(cache, input_ids, attention_mask)
        longest = max(map(len, written.rows))
        ids = [row + [0] * (longest - len(row)) for row in written.rows]  # right of a token nothing matters
        last = [len(row) - 1 for row in written.rows]
        logits = self._logits(torch.tensor(ids, device=input_ids.device))[range(len(last)), last]
        return SimpleNamespace(logits=logits[:, None], cache=written)

    def _logits(self, ids: Tensor) -> Tensor:
        stream = self.stream(ids, self.experiment.masks(ids.size(1)))
        return self.cap * torch.tanh((stream @ self.stream.head.to(stream.dtype).T).float() / self.cap)


def _extended(cache: Written | None, ids: Tensor, mask: Tensor | None) -> Written:
    if cache is not None:
        return Written([row + new for row, new in zip(cache.rows, ids.tolist(), strict=True)])
    kept = torch.ones_like(ids) if mask is None else mask
    pairs = zip(ids, kept.bool(), strict=True)
    return Written([row[real].tolist() for row, real in pairs])


class ArenaTokenizer:
    """Our tokenizer with the few names that `Codec` asks for. A document ends where the next one begins."""

    chat_template = None
    bos_token = None  # no text of a prompt is ever read as a special

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = tokenizer.bos
        self.special_tokens_map = {"bos_token": str(tokenizer.bos)}

    def __len__(self) -> int:
        return self._tokenizer.vocab_size

    def __call__(self, text: str, add_special_tokens: bool = True) -> SimpleNamespace:
        """`input_ids`, with the sign of a document's beginning before them."""
        start = [self._tokenizer.bos] if add_special_tokens else []
        return SimpleNamespace(input_ids=[*start, *self._tokenizer.encode(text)])

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """The text; specials are left out when asked."""
        kept = (token for token in ids if not skip_special_tokens or token < self._tokenizer.bos)
        return self._tokenizer.decode(kept)

    def batch_decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The text of each row."""
        return [self.decode(row) for row in rows]

    def get_vocab(self) -> dict[str, int]:
        """The merges' bytes, as hex, by rank: what decides ids."""
        return {piece.hex(): rank for rank, piece in enumerate(self._tokenizer.merges)}


def load_arena_model(folder: Path, device: str, tokenizer: Path = TOKENIZER) -> Source:
    """The model in `folder` (as the stage `train` publishes it) and the project's tokenizer.

    Raises InputError when it is none, or not of the shape that can be trained from outside.
    """
    try:
        described = json.loads((folder / "spec.json").read_text(encoding="utf-8"))
        weights = load_file(folder / "model.safetensors", device)
    except (OSError, ValueError) as error:
        raise InputError(folder, f"is no model of the arena ({error})", "name data/train/model or a copy") from None
    module = load_arena(folder / "arena.py")
    experiment: Any = build_experiment(module, Spec(device=device, **{**described, "compile": False}))
    experiment.load_state_dict(weights)
    codec = Tokenizer.load(tokenizer)
    if codec.vocab_size != described["vocab_size"]:
        what = f"has {described['vocab_size']} ids, {tokenizer} {codec.vocab_size}"
        raise InputError(folder, what, "use the tokenizer it was trained with")
    model = ArenaLM(experiment, float(getattr(module, "SOFT_CAP", 0)), described["sequence_len"], codec.bos)
    if why := _disagreement(model, experiment):
        what = f"is an arena of another shape than a stream, a head and SOFT_CAP: {why}"
        raise InputError(folder, what, "train it as it is with the stage `train`, or use a Hugging Face model")
    return Source(model, ArenaTokenizer(codec))


def _disagreement(model: ArenaLM, experiment: Any) -> str:
    """Why `model` does not say what the experiment's own `logits` say, or ""."""
    ids = torch.arange(min(8, model.config.max_position_embeddings))[None].to(next(model.parameters()).device)
    try:
        with torch.no_grad():
            apart = float((model(ids).logits - experiment.logits(ids)).abs().max())
    except (AttributeError, TypeError, RuntimeError, ZeroDivisionError) as error:
        return f"{type(error).__name__}: {error}"
    return "" if apart <= TOLERANCE else f"its logits are up to {apart:.3g} apart"
