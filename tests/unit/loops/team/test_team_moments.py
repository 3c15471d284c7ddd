"""Moments in three bytes: how far they are off, and that going on from the file is going on from the numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import toy_team
from ratchet.loops.team import moments
from ratchet.loops.team.moments import compact, decoded
from ratchet.loops.team.team import Team
from ratchet.loops.team.update import update
from toy_team import group


def second_coded(values: torch.Tensor) -> torch.Tensor:
    return compact(torch.zeros(1), values.clone())[1]


def test_moments_second_is_off_by_an_eighth_of_an_octave_at_most() -> None:
    values = torch.logspace(-16, 2, 5000, base=10)
    again = decoded(second_coded(values))
    assert float((again / values).log2().abs().max()) <= 0.1251
    assert abs(float((again / values).log2().mean())) < 0.01, "as often up as down"


def test_moments_second_is_the_logarithm_rounded_whatever_the_mantissa() -> None:
    """Every mantissa near where the rounding turns, and every eighth thousandth one else."""
    turns = [int((2 ** (eighth / 8) - 1) * 2**23) for eighth in (1, 3, 5, 7)]
    near = torch.tensor([turn + step for turn in turns for step in range(-50, 51)])
    mantissas = torch.cat([torch.arange(0, 2**23, 8009), near]).int()
    for octave in (-60, -57, -56, -30, -1, 0, 7, 40):
        values = (mantissas + ((octave + 127) << 23)).view(torch.float32)
        slow = ((values.double().log2() + 56) * 4 + 1).round().clamp(0, 255).to(torch.uint8)
        assert torch.equal(second_coded(values), slow)


def test_moments_second_coded_twice_is_coded_once() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(second_coded(decoded(codes)), codes)


def test_moments_second_of_nothing_is_nothing() -> None:
    values = torch.tensor([0.0, 1e-30, 2.0**-56, 1e-45])
    assert decoded(second_coded(values)).tolist() == [0.0, 0.0, 2.0**-56, 0.0]


@pytest.mark.parametrize("shape", [(1000,), (40, 30), ()])
def test_moments_become_what_is_stored_of_them_in_parts_of_any_size(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = torch.randn(shape), torch.rand(shape) * 1e-6
    kept = first.clone()
    whole = [each.clone() for each in (first, second)]
    expected = compact(*whole)
    monkeypatch.setattr(moments, "PART", 7)
    means, codes = compact(first, second)
    assert torch.equal(means.float(), first)
    assert torch.equal(decoded(codes), second)
    assert float(((first - kept) / kept).abs().max()) <= 2**-8
    assert all(
        torch.equal(one, other) for one, other in zip((means, codes, first, second), (*expected, *whole), strict=True)
    )
    wide = torch.rand(6, 4).T
    compact(torch.zeros(1), wide)
    assert torch.equal(decoded(second_coded(wide)), wide), "whatever the layout"


def test_moments_saved_compact_come_back_as_they_are(tmp_path: Path) -> None:
    team, other = (Team(toy_team.sources(), toy_team.config()) for _ in range(2))
    update(team, [group()], ("u",), 512)
    exact = {name: tensor.clone() for name, tensor in team.moments(0).items()}
    team.round_moments()
    files = [tmp_path / name for name in team.files(0)]
    for file, write in zip(files, team.save(0, compact=True).values(), strict=True):
        write(file)
    other.load(0, *files)
    assert all(torch.equal(tensor, other.moments(0)[name]) for name, tensor in team.moments(0).items())
    assert any(not torch.equal(tensor, exact[name]) for name, tensor in team.moments(0).items())
    weights = sum(tensor.numel() for tensor in team.weights(0).values())
    assert sum(file.stat().st_size for file in files) < 7.2 * weights + 10_000
