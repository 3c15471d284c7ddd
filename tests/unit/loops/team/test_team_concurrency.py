"""Agents at once: the same results as in turn, the threads given back, the first error told."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

import toy_team
from ratchet.loops.team import concurrency
from ratchet.loops.team.concurrency import at_once
from ratchet.loops.team.generation import Ask, Limits, generate
from ratchet.loops.team.policy import CausalLM, widen_products
from ratchet.loops.team.rollout import rollout, training_plan
from ratchet.loops.team.sampling import Sampling
from ratchet.loops.team.team import Team


@pytest.fixture
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def test_at_once_shares_the_threads_out_and_gives_them_back(four_threads: None) -> None:
    meet = threading.Barrier(2, timeout=30)

    def work() -> tuple[int, int]:
        meet.wait()
        return threading.get_ident(), torch.get_num_threads()

    (first, threads), (second, _) = at_once([work, work])
    assert first != second
    assert threads == 2
    assert torch.get_num_threads() == 4


def test_at_once_on_one_thread_is_in_turn() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert at_once([threading.get_ident] * 3) == [threading.get_ident()] * 3
    finally:
        torch.set_num_threads(before)


def test_at_once_raises_what_was_raised_and_gives_the_threads_back(four_threads: None) -> None:
    def broken() -> int:
        raise KeyError("who")

    with pytest.raises(KeyError, match="who"):
        at_once([lambda: 1, broken])
    assert torch.get_num_threads() == 4


def test_rollout_of_agents_at_once_says_what_they_say_in_turn(
    four_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = toy_team.config(num_agents=3, num_turns=2, num_generations=2)
    task = toy_team.LetterTask(agents=3)
    team = Team(toy_team.sources(3), config)
    items = list(enumerate(task.train[:2]))
    together = rollout(team, task, items, training_plan(config, 0))
    monkeypatch.setattr(concurrency.torch, "get_num_threads", lambda: 1)
    alone = rollout(team, task, items, training_plan(config, 0))
    said = [[node.said for root in roots for node in root.walk()] for roots in (together, alone)]
    assert said[0] == said[1]


def test_widened_products_say_the_same() -> None:
    """Layers with a bias too, and batches on both sides of the border."""
    asks = [Ask((1, 2, 3, n), ("w", n), "") for n in range(6)]
    found = []
    for widened in (False, True):
        model = toy_team.model(dtype=torch.float64, attention_bias=True, mlp_bias=True)
        policy = CausalLM(model)
        if not widened:
            for module in model.modules():
                vars(module).pop("forward", None)
        found.append([generate(policy, asks, copies, Sampling(1.0), Limits(8, frozenset()), 2) for copies in (1, 2, 4)])
    assert found[0] == found[1]


def test_widened_products_keep_their_shape_and_gradient() -> None:
    layer = torch.nn.Linear(5, 7)
    plain = torch.nn.Linear(5, 7)
    plain.load_state_dict(layer.state_dict())
    widen_products(layer)
    rows = torch.randn(2, 3, 5)
    with torch.no_grad():
        assert layer(rows).shape == (2, 3, 7)
        assert torch.allclose(layer(rows), plain(rows), atol=1e-6)
    layer(rows).sum().backward()
    plain(rows).sum().backward()
    assert torch.equal(layer.weight.grad, plain.weight.grad)
