"""Log-probabilities and gradients of mixed-length batches against a slow reference in float64: one sequence, one token
at a time, the plain definition, the advantages by the published formulas."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import toy_team
from ratchet.loops.team import head
from ratchet.loops.team.buffer import group_of
from ratchet.loops.team.likelihood import Spoken, backward, divergences, micro_batches, score
from ratchet.loops.team.policy import CachedRows, CausalLM
from ratchet.loops.team.rollout import Node, rollout, training_plan
from ratchet.loops.team.team import Team
from ratchet.loops.team.update import update


def reference_log_probs(model: Any, prompt: Sequence[int], completion: Sequence[int]) -> list[Tensor]:
    """log p of each completion token in float64 with a graph, from a forward of its own."""
    found: list[Tensor] = []
    for place, token in enumerate(completion):
        ids = torch.tensor([[*prompt, *completion[:place]]])
        found.append(model(input_ids=ids, use_cache=False).logits[0, -1].log_softmax(-1)[token])
    return found


def plain_log_probs(model: Any, prompt: Sequence[int], completion: Sequence[int]) -> Tensor:
    """The same from one forward of the one sequence, without padding and cache."""
    ids = torch.tensor([[*prompt, *completion]])
    choices = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    return choices[range(len(completion)), list(completion)]


def gradient(model: Any) -> Tensor:
    """All gradients in one vector, in float64."""
    return torch.cat([p.grad.double().reshape(-1) for p in model.parameters() if p.grad is not None])


def assert_same_direction_and_length(found: Tensor, expected: Tensor) -> None:
    cosine = float(torch.dot(found, expected) / (found.norm() * expected.norm()))
    assert cosine >= 1 - 1e-9, cosine
    assert abs(float(found.norm() / expected.norm()) - 1) <= 1e-6


def sequences(count: int = 9) -> list[Spoken]:
    """Prompts and completions of many lengths; some end with 256, which is also the padding's id."""
    generator = torch.Generator().manual_seed(5)

    def ids(low: int, high: int) -> tuple[int, ...]:
        size = int(torch.randint(low, high, (1,), generator=generator))
        return tuple(torch.randint(0, 257, (size,), generator=generator).tolist())

    return [Spoken(ids(1, 12), (*ids(0, 20), 256 if n % 2 else 7), (-1.0) ** n * (n + 1) / 7) for n in range(count)]


def reference_gradient(model: Any, spoken: Sequence[Spoken]) -> tuple[list[float], Tensor]:
    slow = copy.deepcopy(model).double()
    sums: list[float] = []
    for one in spoken:
        total = torch.stack(reference_log_probs(slow, one.prompt, one.completion)).sum()
        (-one.coefficient * total).backward()
        sums.append(float(total.detach()))
    return sums, gradient(slow)


@pytest.mark.parametrize("max_tokens", [1, 40, 100, 4096])
@pytest.mark.parametrize("tied", [True, False])
def test_backward_mixed_lengths_equal_the_slow_reference(max_tokens: int, tied: bool) -> None:
    model, spoken = toy_team.model(tied=tied), sequences()
    sums, expected = reference_gradient(model, spoken)
    scored = backward(CausalLM(model), spoken, max_tokens)
    assert [one.log_prob for one in scored] == pytest.approx(sums, rel=1e-5)
    assert [one.tokens for one in scored] == [len(one.completion) for one in spoken]
    assert_same_direction_and_length(gradient(model), expected)


def test_backward_of_a_model_with_a_soft_cap_equals_the_slow_reference() -> None:
    """Such a model's logits are not its last layer alone, so the fast head must not be used."""
    model, spoken = toy_team.model(dtype=torch.float64), sequences(5)
    model.forward = _capped(model)  # type: ignore[method-assign]
    policy = CausalLM(model)
    assert policy._head is None  # pyright: ignore[reportPrivateUsage]
    slow = toy_team.model(dtype=torch.float64)
    slow.forward = _capped(slow)  # type: ignore[method-assign]
    sums: list[float] = []
    for one in spoken:
        total = torch.stack(reference_log_probs(slow, one.prompt, one.completion)).sum()
        (-one.coefficient * total).backward()
        sums.append(float(total.detach()))
    assert [one.log_prob for one in backward(policy, spoken, 200)] == pytest.approx(sums, rel=1e-5)
    assert_same_direction_and_length(gradient(model), gradient(slow))


def _capped(model: Any) -> Any:
    plain = type(model).forward

    def forward(*arguments: Any, **more: Any) -> Any:
        out = plain(model, *arguments, **more)
        out.logits = 3.0 * torch.tanh(out.logits / 3.0)
        return out

    return forward


def test_score_in_small_chunks_of_logits_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, spoken = toy_team.model(dtype=torch.float64), sequences()
    whole = score(CausalLM(model), spoken, 200)
    expected = backward(CausalLM(model), spoken, 200)
    kept = gradient(model)
    model.zero_grad()
    monkeypatch.setattr(head, "CHUNK_BYTES", 260 * 8 * 3)
    parts = backward(CausalLM(model), spoken, 200)
    for one, other, third in zip(whole, expected, parts, strict=True):
        for found in (other, third):
            assert found.log_probs == pytest.approx(one.log_probs)
            assert found.entropy == pytest.approx(one.entropy)
    assert_same_direction_and_length(gradient(model), kept)


def test_score_leaves_no_gradient_and_its_entropy_is_that_of_the_choices() -> None:
    model, spoken = toy_team.model(dtype=torch.float64), sequences(3)
    scored = score(CausalLM(model), spoken, 4096)
    assert all(p.grad is None for p in model.parameters())
    for one, found in zip(spoken, scored, strict=True):
        logits = model(input_ids=torch.tensor([[*one.prompt, *one.completion]])).logits[0].detach()
        choices = logits[len(one.prompt) - 1 : -1].log_softmax(-1)
        assert found.entropy == pytest.approx(-float((choices.exp() * choices).sum()))


def test_micro_batches_hold_their_limit_and_lose_nothing() -> None:
    spoken = [one for one in sequences(20) for _ in range(2)]
    for limit in (1, 30, 64, 10_000):
        batches = list(micro_batches(spoken, limit))
        assert sorted(place for batch in batches for place in batch) == list(range(40))
        for batch in batches:
            chosen = [spoken[place] for place in batch]
            prompts = {one.prompt for one in chosen}
            tokens = len(prompts) * max(map(len, prompts)) + len(chosen) * max(len(one.completion) for one in chosen)
            assert len(batch) == 1 or tokens <= limit
    assert len(list(micro_batches(spoken, 10_000))) == 1


def test_backward_reads_a_prompt_once_for_all_its_completions(monkeypatch: pytest.MonkeyPatch) -> None:
    model = toy_team.model()
    policy, seen, plain = CausalLM(model), list[tuple[int, int]](), model.model.forward

    def watched(*arguments: Any, input_ids: Tensor, **more: Any) -> Any:
        seen.append((input_ids.size(0), input_ids.size(1)))
        return plain(*arguments, input_ids=input_ids, **more)

    monkeypatch.setattr(model.model, "forward", watched)
    backward(policy, [Spoken((1, 2, 3, 4, 5), (6, 7, n), 1.0) for n in range(8)], 4096)
    assert seen == [(1, 5), (8, 2)], "the last token of a completion is predicted, never read"


def test_logits_are_made_for_completion_tokens_alone_never_for_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    model = toy_team.model()
    policy, learnt, written, plain = CausalLM(model), list[int](), list[int](), head._chunk  # pyright: ignore[reportPrivateUsage]

    def watched(hidden: Tensor, *arguments: Any) -> Any:
        learnt.append(hidden.size(0))
        return plain(hidden, *arguments)

    monkeypatch.setattr(head, "_chunk", watched)
    backward(policy, [Spoken(tuple(range(1, 60)), (6, 7, n), 1.0) for n in range(4)], 4096)
    assert learnt == [4 * 3]
    model.lm_head.register_forward_hook(lambda module, given, logits: written.append(logits[..., 0].numel()))
    policy.begin([list(range(1, 60)), [5, 6]], 3)
    assert written == [2], "the last position of each prompt"


def test_divergences_are_zero_for_one_model_and_the_k3_estimate_for_two() -> None:
    spoken = sequences(4)
    one, other = (score(CausalLM(toy_team.model(seed, dtype=torch.float64)), spoken, 4096) for seed in (0, 1))
    assert divergences(one, one) == [0.0] * 4
    expected = [
        sum(math.exp(b - a) - (b - a) - 1 for a, b in zip(x.log_probs, y.log_probs, strict=True))
        for x, y in zip(one, other, strict=True)
    ]
    assert divergences(one, other) == pytest.approx(expected)
    assert min(expected) > 0


def test_generation_under_left_padding_sees_the_logits_that_the_learner_sees() -> None:
    model = toy_team.model(dtype=torch.float64)
    prompts, tokens = [(5, 6, 7, 8, 9, 10), (11,), (256, 12, 256)], torch.tensor([3, 256, 5])
    with torch.inference_mode():
        rows = CachedRows(model, prompts, 1)
        first = rows.logits.log_softmax(-1)
        rows.step(tokens)
        second = rows.logits.log_softmax(-1)
    spoken = [Spoken(prompt, (int(token), 42)) for prompt, token in zip(prompts, tokens, strict=True)]
    for row, found in enumerate(score(CausalLM(model), spoken, 4096)):
        seen = (float(first[row, tokens[row]]), float(second[row, 42]))
        assert found.log_probs == pytest.approx(seen, abs=1e-10)


# The whole way: rollout, returns, advantages, loss


class Kept:
    """An optimizer that keeps each step's gradient instead of making it."""

    def __init__(self, model: Any) -> None:
        self.model, self.gradients = model, list[Tensor]()

    def step(self) -> None:
        self.gradients.append(gradient(self.model))

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.model.zero_grad(set_to_none=set_to_none)


class Uneven(toy_team.LetterTask):
    """Rewards that differ between joint actions."""

    def reward(self, completions: list[list[str]], items: Any) -> list[float]:
        rows = list(zip(*completions, strict=True))
        return [sum((agent + 1) * sum(map(ord, text)) % 17 for agent, text in enumerate(row)) / 7 for row in rows]


def published_advantages(returns: Tensor, mode: str, normalise: bool) -> Tensor:
    size = len(returns)
    shifted = {
        "mean": returns - returns.mean(),
        "raw": returns,
        "max": returns - returns.max(),
        "rloo": (returns * size - returns.sum()) / (size - 1),
    }[mode]
    return (shifted - shifted.mean()) / shifted.std(unbiased=False).clamp(min=1e-6) if normalise else shifted


def reference_update(model: Any, nodes: Sequence[Node], agent: int, joint: str, mode: str, normalise: bool) -> Tensor:
    """The gradient of agent `agent`'s minibatch of `nodes`, by definition."""
    slow = copy.deepcopy(model).double()
    for node in nodes:
        said = node.said[agent]
        earned = [0.0] * len(said.completions)
        for combo, value in zip(node.combos, node.rewards, strict=True):
            if joint == "aligned":
                earned[combo[0]] = value
            else:
                earned[combo[agent]] += value
        worth = published_advantages(torch.tensor(earned, dtype=torch.float64), mode, normalise)
        for ids, advantage in zip(said.completions, worth, strict=True):
            total = plain_log_probs(slow, said.prompt, ids).sum()
            (-advantage * total / len(said.completions) / len(nodes)).backward()
    return gradient(slow)


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("joint", ["aligned", "cross"])
@pytest.mark.parametrize(
    ("mode", "normalise"), [("mean", False), ("mean", True), ("raw", False), ("max", False), ("rloo", False)]
)
def test_update_gradient_equals_the_slow_reference(joint: str, mode: str, normalise: bool, chat: bool) -> None:
    """Padding is the end of sequence here, prompts differ in length (so generation pads on the left), and with `chat`
    they hold ends of sequences themselves."""
    config = toy_team.config(
        joint_mode=joint, advantage_mode=mode, advantage_normalization=normalise, chat_template=chat,
        num_generations=3, max_new_tokens=10, micro_batch_tokens=70,
    )  # fmt: skip
    team, task = Team(toy_team.sources(dtype=torch.float64), config), Uneven()
    nodes = rollout(team, task, list(enumerate(task.train))[:2], training_plan(config, 0))
    assert len({len(ids) for node in nodes for said in node.said for ids in said.completions}) > 2
    assert not chat or all(256 in said.prompt for node in nodes for said in node.said)
    models = [policy.model for policy in team.policies]  # pyright: ignore[reportAttributeAccessIssue]
    expected = [reference_update(model, nodes, agent, joint, mode, normalise) for agent, model in enumerate(models)]
    team.optimizers = kept = [Kept(model) for model in models]  # type: ignore[assignment]
    update(team, [group_of(node) for node in nodes], ("test",), config.micro_batch_tokens)
    for each, slow in zip(kept, expected, strict=True):
        assert len(each.gradients) == 1, "both groups make one minibatch"
        assert_same_direction_and_length(each.gradients[0], slow)
