"""Moments in three bytes: how far they are off, and that going on from the file is going on from the numbers."""

from __future__ import annotations

from pathlib import Path

import torch

import toy_team
from ratchet.loops.team.moments import first_rounded, second_coded, second_decoded
from ratchet.loops.team.team import Team
from ratchet.loops.team.update import update
from toy_team import group


def test_moments_second_is_off_by_an_eighth_of_an_octave_at_most() -> None:
    values = torch.logspace(-16, 2, 5000, base=10)
    again = second_decoded(second_coded(values))
    assert float((again / values).log2().abs().max()) <= 0.1251
    assert abs(float((again / values).log2().mean())) < 0.01, "as often up as down"


def test_moments_second_coded_twice_is_coded_once() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(second_coded(second_decoded(codes)), codes)


def test_moments_second_of_nothing_is_nothing() -> None:
    values = torch.tensor([0.0, 1e-30, 2.0**-56])
    assert second_decoded(second_coded(values)).tolist() == [0.0, 0.0, 2.0**-56]


def test_moments_first_rounded_twice_is_rounded_once() -> None:
    values = torch.randn(1000)
    assert torch.equal(first_rounded(first_rounded(values).float()), first_rounded(values))
    assert float(((first_rounded(values).float() - values) / values).abs().max()) <= 2**-8


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
