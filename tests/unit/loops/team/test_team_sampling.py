"""The choice of a token: the distribution that it comes from, and that its draws are named."""

from __future__ import annotations

import pytest
import torch
from transformers.generation.logits_process import (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ratchet.loops.team.sampling import Sampling, choose, uniforms


def distribution(logits: torch.Tensor, sampling: Sampling, draws: int = 40_001) -> torch.Tensor:
    """How often each token is chosen over an even grid of uniforms: the distribution itself, to 1 / draws."""
    grid = (torch.arange(draws, dtype=torch.float64) + 0.5) / draws
    chosen = choose(logits.expand(draws, -1), grid, sampling)
    return torch.bincount(chosen, minlength=logits.size(-1)).double() / draws


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(1.0),
        Sampling(0.6, 0.6, 50),
        Sampling(0.7, 1.0, 5),
        Sampling(1.3, 0.9),
        Sampling(1.0, 0.05),
        Sampling(1.0, 1.0, 1),
        Sampling(0.6, 0.6, 7),
    ],
)
def test_choose_has_the_distribution_of_the_usual_warpers(sampling: Sampling) -> None:
    logits = torch.randn(1, 40, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    scores = TemperatureLogitsWarper(sampling.temperature)(None, logits)
    if sampling.top_k:
        scores = TopKLogitsWarper(sampling.top_k)(None, scores)
    if sampling.top_p < 1:
        scores = TopPLogitsWarper(sampling.top_p)(None, scores)
    found = distribution(logits, sampling)
    assert torch.allclose(found, scores.softmax(-1)[0], atol=1e-4)


def test_choose_greedy_takes_the_most_probable() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, 3.0, 1.0]])
    assert choose(logits, torch.tensor([0.99, 0.0], dtype=torch.float64), Sampling(0.0)).tolist() == [1, 0]


@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(1.0, 0.5, 3), Sampling(1.0, 0.9), Sampling(1.0, 1.0, 3)])
def test_choose_at_the_ends_of_the_unit_interval_stays_among_the_kept(sampling: Sampling) -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, -800.0]]).expand(3, -1)
    edge = 1 - 2**-53
    chosen = choose(logits, torch.tensor([0.0, edge, edge], dtype=torch.float64), sampling)
    assert chosen[0] == 0
    assert chosen.max() < 4, "a token without probability"


def test_uniforms_are_the_same_for_a_name_and_differ_between_names() -> None:
    one = uniforms(7, "rollout", 0, 3, 1, [2], 0, count=16)
    assert (one == uniforms(7, "rollout", 0, 3, 1, [2], 0, count=16)).all()
    assert (one[:4] == uniforms(7, "rollout", 0, 3, 1, [2], 0, count=4)).all(), "a longer limit changes no draw"
    others = [(8, "rollout", 0, 3, 1, [2], 0), (7, "evaluation", 0, 3, 1, [2], 0), (7, "rollout", 1, 3, 1, [2], 0),
              (7, "rollout", 0, 4, 1, [2], 0), (7, "rollout", 0, 3, 0, [2], 0), (7, "rollout", 0, 3, 1, [], 0),
              (7, "rollout", 0, 3, 1, [2], 1)]  # fmt: skip
    for seed, *names in others:
        assert abs(uniforms(seed, *names, count=16) - one).max() > 0.01, f"{seed}, {names}"
