"""The last linear layer and the policy gradient's loss in one: logits exist for a few positions at a time, never for a
prompt, and their gradient is made where they are.

The loss is linear in the log-probabilities with coefficients that are known before, so one pass gives value and
gradient. Refuses to know where hidden states come from.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK_BYTES = 64 * 1024 * 1024
"""Logits that exist at once; four buffers of this size are the peak."""


class WeightedNll(torch.autograd.Function):
    """Σ coefficient · −log p(target) over positions, and detached log p and entropy of each."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, coefficients: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`hidden` [N, H], `weight` [V, H], `bias` [V], `targets` [N] of ids, `coefficients` [N] → 0-d, [N], [N]."""
        pairs = zip(ctx.needs_input_grad, (hidden, weight, bias), strict=False)
        grads = [torch.zeros_like(tensor) if need and tensor is not None else None for need, tensor in pairs]
        log_probs, entropies = torch.empty_like(coefficients), torch.empty_like(coefficients)
        rows = max(1, CHUNK_BYTES // (weight.size(0) * coefficients.element_size()))
        for start in range(0, hidden.size(0), rows):
            part = slice(start, start + rows)
            found = _chunk(hidden[part], weight, bias, targets[part], coefficients[part], grads, part)
            log_probs[part], entropies[part] = found
        ctx.save_for_backward(*[grad for grad in grads if grad is not None])
        ctx.has = [grad is not None for grad in grads]
        ctx.mark_non_differentiable(log_probs, entropies)
        return -(coefficients * log_probs).sum(), log_probs, entropies

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Gradients of hidden, weight and bias."""
        saved, scale = iter(ctx.saved_tensors), outputs[0]
        hidden, weight, bias = (next(saved) * scale if has else None for has in ctx.has)
        return hidden, weight, bias, None, None


def _chunk(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    coefficients: Tensor,
    grads: list[Tensor | None],
    part: slice,
) -> tuple[Tensor, Tensor]:
    """Log p and entropy of the positions `part`; their share is added to `grads` (of hidden, weight and bias)."""
    logits = (hidden @ weight.T).to(coefficients.dtype)
    if bias is not None:
        logits += bias
    logits -= logits.logsumexp(-1, keepdim=True)
    log_prob = logits.gather(-1, targets[:, None])[:, 0]
    probs = logits.exp()
    entropy = -(probs * logits).sum(-1)
    if any(grad is not None for grad in grads):
        probs[torch.arange(len(targets), device=targets.device), targets] -= 1.0
        probs *= coefficients[:, None]  # by now the gradient of the loss with respect to the logits
        to_hidden, to_weight, to_bias = grads
        narrow = probs.to(weight.dtype)
        if to_hidden is not None:
            to_hidden[part] = narrow @ weight
        if to_weight is not None:
            to_weight.addmm_(narrow.T, hidden)
        if to_bias is not None:
            to_bias += probs.sum(0)
    return log_prob, entropy


def weighted_nll(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, coefficients: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(loss, log p [N], entropy in nats [N]); see WeightedNll. Log p and entropy carry no gradient."""
    if not torch.is_grad_enabled():
        hidden, weight, bias = hidden.detach(), weight.detach(), None if bias is None else bias.detach()
    return WeightedNll.apply(hidden, weight, bias, targets, coefficients)  # pyright: ignore[reportReturnType]


def weighted_nll_of_logits(logits: Tensor, targets: Tensor, coefficients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same from `logits` [N, V], by autograd: for models that do more than a linear layer at their end."""
    every = logits.to(coefficients.dtype).log_softmax(-1)
    log_probs = every.gather(-1, targets[:, None])[:, 0]
    with torch.no_grad():
        entropies = -(every.exp() * every).sum(-1)
    return -(coefficients * log_probs).sum(), log_probs.detach(), entropies
