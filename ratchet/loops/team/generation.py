"""Completions of many prompts at once: one cache, one pass a token, and rows that are finished leave.

Refuses to know agents, rewards and texts. What a row draws is named by what it is (`uniforms`), so who shares its batch
changes nothing but the last bits of logits.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ratchet.core.errors import InputError
from ratchet.loops.team.memory import is_out_of_memory
from ratchet.loops.team.policy import Policy
from ratchet.loops.team.sampling import Sampling, choose, uniforms

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Ask:
    """One prompt. `name`: what its draws are keyed by, JSON values; `where`: what it is called in an error."""

    prompt: Ids
    name: tuple[object, ...]
    where: str


@dataclass(frozen=True)
class Limits:
    """How far a completion goes, which tokens end it, and how many rows are written at once."""

    max_new_tokens: int
    ends: frozenset[int]
    rows: int = 64


@torch.inference_mode()
def generate(
    policy: Policy, asks: Sequence[Ask], copies: int, sampling: Sampling, limits: Limits, seed: int
) -> list[list[Ids]]:
    """`copies` completions of each prompt, in order, each with the token that ended it; at least one token long.

    Raises InputError naming the prompt that leaves no room for `max_new_tokens` in the model's context.
    """
    for ask in asks:
        check_room(policy, ask, limits.max_new_tokens)
    found: list[list[Ids]] = [[] for _ in asks]
    for batch, generations in _batches(asks, copies, limits.rows):
        written = _within_memory(policy, [asks[index] for index in batch], generations, sampling, limits, seed)
        for index, rows in zip(batch, written, strict=True):
            found[index] += rows
    return found


def check_room(policy: Policy, ask: Ask, max_new_tokens: int) -> None:
    """Raise InputError when prompt and completion do not fit the model's context."""
    if policy.context is not None and len(ask.prompt) + max_new_tokens > policy.context:
        what = (
            f"the prompt has {len(ask.prompt)} tokens, which with max_new_tokens {max_new_tokens} "
            f"is beyond the model's context of {policy.context}"
        )
        raise InputError(ask.where, what, "shorten the prompt or lower team.max_new_tokens")


def _batches(asks: Sequence[Ask], copies: int, rows: int) -> Iterator[tuple[list[int], range]]:
    """Prompts (shortest first: least padding) with the copies to make of them, at most `rows` completions at once."""
    order = sorted(range(len(asks)), key=lambda index: len(asks[index].prompt))
    for first in range(0, copies, rows):
        generations = range(first, min(first + rows, copies))
        size = max(1, rows // len(generations))
        for start in range(0, len(order), size):
            yield order[start : start + size], generations


def _within_memory(
    policy: Policy, asks: Sequence[Ask], generations: range, sampling: Sampling, limits: Limits, seed: int
) -> list[list[Ids]]:
    """`_write`, in halves when memory does not suffice. Raises what the last half raised."""
    try:
        return _write(policy, asks, generations, sampling, limits, seed)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error) or len(asks) * len(generations) == 1:
            raise
    print(f"team: out of memory with {len(asks) * len(generations)} completions at once; half of them each",
          file=sys.stderr, flush=True)  # fmt: skip
    if len(asks) > 1:
        half = len(asks) // 2
        parts = (asks[:half], asks[half:])
        return [row for part in parts for row in _within_memory(policy, part, generations, sampling, limits, seed)]
    half = len(generations) // 2
    first, rest = (
        _within_memory(policy, asks, part, sampling, limits, seed) for part in (generations[:half], generations[half:])
    )
    return [one + other for one, other in zip(first, rest, strict=True)]


def _write(
    policy: Policy, asks: Sequence[Ask], generations: range, sampling: Sampling, limits: Limits, seed: int
) -> list[list[Ids]]:
    names = [(*ask.name, generation) for ask in asks for generation in generations]
    draws = torch.from_numpy(np.stack([uniforms(seed, *name, count=limits.max_new_tokens) for name in names]))
    ends = torch.tensor(sorted(limits.ends), device=policy.device)
    written: list[list[int]] = [[] for _ in names]
    live, rows = (
        torch.arange(len(names), device=policy.device),
        policy.begin([a.prompt for a in asks], len(generations)),
    )
    for place in range(limits.max_new_tokens):
        tokens = choose(rows.logits, draws[live.cpu(), place], sampling)
        for row, token in zip(live.tolist(), tokens.tolist(), strict=True):
            written[row].append(token)
        open_rows = torch.isin(tokens, ends, invert=True).nonzero()[:, 0]
        if not len(open_rows) or place + 1 == limits.max_new_tokens:
            break
        if len(open_rows) < len(live):
            rows.keep(open_rows)
            live, tokens = live[open_rows], tokens[open_rows]
        rows.step(tokens)
    each = [tuple(ids) for ids in written]
    return [each[start : start + len(generations)] for start in range(0, len(each), len(generations))]
