"""What only CUDA can show of the team loop: it runs under deterministic algorithms, and resumes to the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import toy_team
from ratchet.loops.team import session
from ratchet.loops.team.team import Source

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def train(where: Path, epochs: int) -> Any:
    here = toy_team.settings(where, device="cuda")
    config = toy_team.config(
        num_train_epochs=epochs, num_turns=2, reference_kl_enabled=True, max_new_tokens=6, top_k=40
    )
    one = Source(toy_team.model().to("cuda"), toy_team.tokenizer())
    live = session.make_session(config, [one] * 2, toy_team.LetterTask(), here)
    with session.open_session(live, here) as run:
        return session.Driver(live, run, here, lambda line: None).drive(), live


def test_gpu_team_two_epochs_and_two_more_equal_four(tmp_path: Path) -> None:
    _, whole = train(tmp_path / "whole", 4)
    train(tmp_path / "parts", 2)
    ending, parts = train(tmp_path / "parts", 4)
    assert ending.state.epoch == 4
    for one, other in zip(whole.team.policies, parts.team.policies, strict=True):
        pairs = zip(one.trainable().values(), other.trainable().values(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
