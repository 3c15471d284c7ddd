"""Which token comes next: temperature, top-k, top-p, and uniforms that are named, not drawn.

Every row has numbers of its own, keyed by what it is, so a completion does not depend on which rows share its batch.
Refuses to know models.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ratchet.core.seeds import derive


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen. `temperature` 0: the most probable one. `top_k` None, `top_p` 1: from all."""

    temperature: float
    top_p: float = 1.0
    top_k: int | None = None


def uniforms(seed: int, *names: object, count: int) -> np.ndarray:
    """`count` float64 numbers in [0, 1) for the row called `names`: the same wherever and with whomever it is made."""
    return np.random.Generator(np.random.Philox(key=derive(seed, *names))).random(count)


def choose(logits: Tensor, uniform: Tensor, sampling: Sampling) -> Tensor:
    """One token per row [B] from `logits` [B, V] and `uniform` [B] (float64, CPU), by the inverse of the distribution.

    Kept are the `top_k` most probable tokens after `temperature`, and of these the fewest whose probability reaches
    `top_p` (Holtzman et al. 2020), at least one: the order and the meaning that Hugging Face's generation has. The sums
    are made on the CPU: CUDA has no deterministic ones.
    """
    if sampling.temperature == 0:
        return logits.argmax(-1)
    scaled = logits.double() / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < logits.size(-1):
        scaled, tokens = scaled.topk(sampling.top_k, dim=-1)
    elif sampling.top_p < 1:
        scaled, tokens = scaled.sort(dim=-1, descending=True, stable=True)
    else:
        tokens = None
    mass = scaled.softmax(-1).cpu()
    if sampling.top_p < 1:
        mass = mass * (mass.cumsum(-1) - mass < sampling.top_p)
    reached = mass.cumsum(-1)
    place = (reached <= (uniform * reached[:, -1])[:, None]).sum(-1)
    place = torch.minimum(place, (mass > 0).cumsum(-1).argmax(-1))[:, None]  # rounding may not pass the last one kept
    place = place.to(logits.device)
    return (place if tokens is None else tokens.gather(-1, place))[:, 0]
