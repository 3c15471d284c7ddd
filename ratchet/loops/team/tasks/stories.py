"""The length-ratio task of the published example: both agents answer one prompt, and the second answer should be two to
three times as long as the first.

The prompts are made of words here, so that as many as wanted can be held out. Refuses to know what a story is worth.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from ratchet.loops.team.tasks.protocol import Item, Sizes, Turn
from ratchet.loops.team.tasks.splitting import split

LOW, HIGH = 2.0, 3.0
OPENINGS = (
    "Write a story about {}:", "Describe {}:", "Invent a game for {}:", "Write a bedtime story for {}:",
    "Tell a joke about {}:", "Write a letter to {}:", "Design a house for {}:", "Explain a rainbow to {}:",
)  # fmt: skip
HEROES = (
    "a shy robot", "a lost shadow", "an old lighthouse", "a dragon who cooks", "the youngest star", "a city of glass",
    "a whale in the desert", "two clouds", "a clock that runs backwards", "the last dinosaur", "a raindrop",
    "a talking tree", "the moon's cat", "a forgotten island", "a train without rails", "a painter of dreams",
    "a snowman in July", "the king of moths", "a library on wheels", "a fox with a map", "a violin made of ice",
    "a village on stilts", "the wind's little sister", "a baker on Mars", "a museum of smells", "a polite volcano",
    "a river that sings", "a ghost afraid of people", "an orchestra of frogs", "a bridge to nowhere",
    "a spider who knits", "the keeper of lost keys",
)  # fmt: skip


class Stories:
    """256 prompts of eight openings and 32 heroes."""

    name = "stories"

    def __init__(self, seed: int, sizes: Sizes) -> None:
        prompts = [opening.format(hero) for opening, hero in itertools.product(OPENINGS, HEROES)]
        items: dict[str, dict[str, Any]] = {prompt: {"prompt": prompt} for prompt in prompts}
        self.train, self.evaluation = split(items, seed, sizes, "stories task")

    def prompts(self, item: Item, history: Sequence[Turn]) -> list[str]:
        """The same prompt for both, as published."""
        return [item["prompt"]] * 2

    def reward(self, completions: list[list[str]], items: list[Item]) -> list[float]:
        """`length_ratio` of each pair."""
        return [length_ratio(first, second) for first, second in zip(*completions, strict=True)]


def length_ratio(first: str, second: str) -> float:
    """1 when `second` has `LOW` to `HIGH` times the letters of `first`; outside, exp(−distance of the ratio); 0 when
    `first` is empty."""
    if not first:
        return 0.0
    ratio = len(second) / len(first)
    return math.exp(-max(LOW - ratio, ratio - HIGH, 0.0))
