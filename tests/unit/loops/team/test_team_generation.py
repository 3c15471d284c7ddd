"""Completions: independent of their batch, ended by their own end, exact under left padding."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import toy_team
from ratchet.core.errors import InputError
from ratchet.loops.team.generation import Ask, Ids, Limits, generate
from ratchet.loops.team.policy import CachedRows, CausalLM
from ratchet.loops.team.sampling import Sampling, choose, uniforms

PROMPTS = [(72, 101, 108), (65,), (50, 256, 51, 52, 53, 54, 55), (1, 2, 3, 4)]
SAMPLING = Sampling(1.0, 0.95, 200)
LIMITS = Limits(16, frozenset({256, *range(0, 60, 3)}))


def asks(prompts: Any = PROMPTS) -> list[Ask]:
    return [Ask(tuple(ids), ("r", place), f"prompt {place}") for place, ids in enumerate(prompts)]


def by_hand(model: Any, ask: Ask, generation: int, limits: Limits) -> Ids:
    """One completion alone, the whole sequence anew for every token, without a cache, a batch or padding."""
    draws = torch.from_numpy(uniforms(7, *ask.name, generation, count=limits.max_new_tokens))
    ids = list(ask.prompt)
    for place in range(limits.max_new_tokens):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[:, -1]
        ids.append(int(choose(logits, draws[place : place + 1], SAMPLING)))
        if ids[-1] in limits.ends:
            break
    return tuple(ids[len(ask.prompt) :])


@pytest.fixture(scope="module")
def policy() -> CausalLM:
    return CausalLM(toy_team.model(dtype=torch.float64))


def test_generate_equals_each_completion_alone_without_cache_and_padding(policy: CausalLM) -> None:
    found = generate(policy, asks(), 3, SAMPLING, LIMITS, 7)
    expected = [[by_hand(policy.model, ask, generation, LIMITS) for generation in range(3)] for ask in asks()]
    assert found == expected
    lengths = {len(ids) for rows in found for ids in rows}
    assert len(lengths) > 3, f"completions of different lengths are what this is about: {lengths}"
    assert all(not LIMITS.ends & set(ids[:-1]) for rows in found for ids in rows)


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 7, 64])
def test_generate_does_not_depend_on_how_rows_are_batched(policy: CausalLM, rows: int) -> None:
    limits = Limits(LIMITS.max_new_tokens, LIMITS.ends, rows)
    assert generate(policy, asks(), 4, SAMPLING, limits, 7) == generate(policy, asks(), 4, SAMPLING, LIMITS, 7)


def test_generate_does_not_depend_on_the_order_and_the_company_of_prompts(policy: CausalLM) -> None:
    every = generate(policy, asks(), 2, SAMPLING, LIMITS, 7)
    assert generate(policy, asks()[::-1], 2, SAMPLING, LIMITS, 7) == every[::-1]
    assert [generate(policy, [ask], 2, SAMPLING, LIMITS, 7)[0] for ask in asks()] == every


def test_generate_with_another_seed_or_name_says_something_else(policy: CausalLM) -> None:
    first = generate(policy, asks(), 2, SAMPLING, LIMITS, 7)
    assert generate(policy, asks(), 2, SAMPLING, LIMITS, 8) != first
    renamed = [Ask(ask.prompt, ("s", *ask.name[1:]), ask.where) for ask in asks()]
    assert generate(policy, renamed, 2, SAMPLING, LIMITS, 7) != first


def test_generate_ended_rows_leave_the_batch(policy: CausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    plain = CachedRows.step

    def counted(self: CachedRows, tokens: torch.Tensor) -> None:
        seen.append(len(tokens))
        plain(self, tokens)

    monkeypatch.setattr(CachedRows, "step", counted)
    found = generate(policy, asks(), 4, SAMPLING, LIMITS, 7)
    lengths = [len(ids) for rows in found for ids in rows]
    assert seen == [sum(length > place for length in lengths) for place in range(1, max(lengths))]


def test_generate_immediate_end_is_a_completion_of_one_token(policy: CausalLM) -> None:
    found = generate(policy, asks(), 2, SAMPLING, Limits(16, frozenset(range(260))), 7)
    assert all(len(ids) == 1 for rows in found for ids in rows)


def test_generate_prompt_beyond_the_context_is_refused_by_name(policy: CausalLM) -> None:
    long = [Ask((1,) * 120, ("r",), "agent 1, item 5")]
    with pytest.raises(
        InputError, match=r"agent 1, item 5: the prompt has 120 tokens.*max_new_tokens 16.*context of 128"
    ):
        generate(policy, long, 1, SAMPLING, LIMITS, 7)
    assert generate(policy, [Ask((1,) * 112, ("r",), "")], 1, SAMPLING, LIMITS, 7)


def test_generate_out_of_memory_goes_on_in_smaller_batches_and_says_so(
    policy: CausalLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = generate(policy, asks(), 4, SAMPLING, LIMITS, 7)
    plain = policy.begin

    def narrow(prompts: Any, copies: int) -> Any:
        if len(prompts) * copies > 2:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory")
        return plain(prompts, copies)

    monkeypatch.setattr(policy, "begin", narrow)
    assert generate(policy, asks(), 4, SAMPLING, LIMITS, 7) == expected
    assert "out of memory with 16 completions at once" in capsys.readouterr().err


def test_generate_any_other_error_is_not_taken_for_memory(policy: CausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(prompts: Any, copies: int) -> Any:
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(policy, "begin", broken)
    with pytest.raises(RuntimeError, match="shapes"):
        generate(policy, asks(), 4, SAMPLING, LIMITS, 7)
