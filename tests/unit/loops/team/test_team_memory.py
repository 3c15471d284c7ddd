"""Memory that does not suffice: known by the real errors, met with smaller passes, said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import toy_team
from ratchet.loops.team import step
from ratchet.loops.team.memory import LEAST_MICRO_BATCH, is_out_of_memory, within_memory


def test_out_of_memory_is_known_by_the_errors_that_there_are() -> None:
    with pytest.raises(RuntimeError) as torch_s:
        torch.empty(1 << 60, dtype=torch.uint8)
    with pytest.raises(MemoryError) as python_s:
        bytearray(1 << 60)
    assert is_out_of_memory(torch_s.value)
    assert is_out_of_memory(python_s.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("out of memory"))


def test_within_memory_halves_until_it_fits_and_gives_up_at_the_least(capsys: pytest.CaptureFixture[str]) -> None:
    tried, undone = list[int](), list[int]()

    def work(tokens: int) -> str:
        tried.append(tokens)
        if tokens > 100:
            torch.empty(1 << 60, dtype=torch.uint8)
        return "done"

    assert within_memory(work, 512, "a test", lambda: undone.append(tried[-1])) == ("done", 64)
    assert (tried, undone) == ([512, 256, 128, 64], [512, 256, 128])
    assert capsys.readouterr().err.count("team: out of memory in a test; from now on micro-batches of") == 3
    with pytest.raises(RuntimeError, match="allocate"):
        within_memory(lambda tokens: torch.empty(1 << 60, dtype=torch.uint8), 2 * LEAST_MICRO_BATCH, "a test")


def test_divergence_out_of_memory_goes_on_in_smaller_passes_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    over: dict[str, Any] = {"num_train_epochs": 1, "max_new_tokens": 4, "reference_kl_enabled": True}
    expected, _ = toy_team.train(tmp_path / "whole", **over)
    plain, asked = step.score, list[int]()

    def narrow(policy: Any, spoken: Any, tokens: int) -> Any:
        asked.append(tokens)
        if tokens > 2048:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(policy, spoken, tokens)

    monkeypatch.setattr(step, "score", narrow)
    ending, _ = toy_team.train(tmp_path / "narrow", **over)
    assert asked.count(4096) == 1
    assert ending.state.micro_batch_tokens == 2048
    assert "out of memory in a divergence; from now on micro-batches of 2048 tokens" in capsys.readouterr().err
    for one, other in zip(expected.rows, ending.rows, strict=True):
        assert other["kl"] == pytest.approx(one["kl"], rel=1e-4)
