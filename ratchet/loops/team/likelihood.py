"""Log-probabilities of completions under a policy, and the gradient of a weighted sum of them.

Completions of one prompt share its pass; batches hold what is of like length. A completion counts from its first token
to the one that ended it, and nothing else does. Refuses to know what the weights mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ratchet.loops.team.policy import Batch, Policy


@dataclass(frozen=True)
class Spoken:
    """One prompt with one completion (its last token included, whatever ended it), and its weight in the loss."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    coefficient: float = 0.0


@dataclass(frozen=True)
class Scored:
    """What a pass found about one completion, summed over its tokens: log p, and the entropy of the choices in nats."""

    log_prob: float
    entropy: float
    tokens: int
    log_probs: tuple[float, ...]


def micro_batches(sequences: Sequence[Spoken], max_tokens: int) -> Iterator[list[int]]:
    """Places of `sequences`, those of one prompt side by side and of like length, so many together that the tokens of a
    forward pass, padding included, stay within `max_tokens`. A prompt counts once: it is read once."""
    order = sorted(range(len(sequences)), key=lambda place: _like(sequences[place]))
    batch: list[int] = []
    for place in order:
        if batch and _cost([sequences[each] for each in (*batch, place)]) > max_tokens:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def _like(one: Spoken) -> tuple[int, tuple[int, ...], int]:
    return -len(one.prompt), one.prompt, -len(one.completion)


def _cost(chosen: Sequence[Spoken]) -> int:
    prompts = {one.prompt for one in chosen}
    longest = max(len(one.completion) for one in chosen)
    return len(prompts) * max(map(len, prompts)) + len(chosen) * longest


def score(policy: Policy, sequences: Sequence[Spoken], max_tokens: int) -> list[Scored]:
    """Log p and entropy of each, without a gradient."""
    with torch.no_grad():
        return _passes(policy, sequences, max_tokens, backward=False)


def backward(policy: Policy, sequences: Sequence[Spoken], max_tokens: int) -> list[Scored]:
    """Add the gradient of Σ coefficient · −log p(completion) to the policy's; log p and entropy of each."""
    return _passes(policy, sequences, max_tokens, backward=True)


def _passes(policy: Policy, sequences: Sequence[Spoken], max_tokens: int, *, backward: bool) -> list[Scored]:
    found: list[Scored | None] = [None] * len(sequences)
    for places in micro_batches(sequences, max_tokens):
        chosen = [sequences[place] for place in places]
        loss, log_probs, entropies = policy.nll(_batch(chosen))
        if backward:
            loss.backward()
        for place, scored in zip(places, _split(chosen, log_probs, entropies), strict=True):
            found[place] = scored
    return [scored for scored in found if scored is not None]


def _batch(chosen: Sequence[Spoken]) -> Batch:
    prompts = list(dict.fromkeys(one.prompt for one in chosen))
    where = {prompt: place for place, prompt in enumerate(prompts)}
    return Batch(
        prompts, [where[one.prompt] for one in chosen], [one.completion for one in chosen],
        [one.coefficient for one in chosen],
    )  # fmt: skip


def _split(chosen: Sequence[Spoken], log_probs: Tensor, entropies: Tensor) -> Iterator[Scored]:
    sizes = [len(s.completion) for s in chosen]
    for one, other in zip(log_probs.double().split(sizes), entropies.double().split(sizes), strict=True):
        yield Scored(float(one.sum()), float(other.sum()), len(one), tuple(one.tolist()))


def divergences(policy_side: Sequence[Scored], reference: Sequence[Scored]) -> list[float]:
    """An estimate of each completion's KL to the reference in nats, never negative: Σ exp(r) − r − 1 over its tokens
    with r = log p_reference − log p (Schulman 2020, k3)."""
    found: list[float] = []
    for own, other in zip(policy_side, reference, strict=True):
        ratios = torch.tensor(other.log_probs, dtype=torch.float64) - torch.tensor(own.log_probs, dtype=torch.float64)
        found.append(float((ratios.exp() - ratios - 1).sum()))
    return found
