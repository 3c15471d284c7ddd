"""The colours of every drawing, told apart by people with any colour vision; each keeps a contrast of 4.5 to its paper.

Blue for the result, vermilion for what it is compared with, grey for raw values: the same in PNG, page, light and dark.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Palette:
    """Colours as #rrggbb."""

    paper: str
    card: str
    ink: str
    quiet: str
    line: str
    main: str
    base: str
    other: str
    raw: str
    warn: str


LIGHT = Palette(
    paper="#f7f6f3",
    card="#ffffff",
    ink="#1c1f23",
    quiet="#5a626b",
    line="#dedbd4",
    main="#0a64a8",
    base="#b34700",
    other="#00735a",
    raw="#a9bdcf",
    warn="#a52a2a",
)

DARK = Palette(
    paper="#14171a",
    card="#1c2024",
    ink="#eceae6",
    quiet="#a3abb3",
    line="#343a40",
    main="#63b5f5",
    base="#f29a4d",
    other="#4cc9a3",
    raw="#4d6276",
    warn="#ff9d94",
)
