"""A task of one's own (docs/team.md): the second agent is to answer in fewer letters than the first."""

from __future__ import annotations


def shorter(first: list[str], second: list[str]) -> list[float]:
    """1 where the second answer is not empty and shorter than the first, else 0."""
    return [float(0 < len(b.strip()) < len(a.strip())) for a, b in zip(first, second, strict=True)]
