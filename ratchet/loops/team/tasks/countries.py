"""Two agents on one country: the helper names its continent, the solver its capital; both are paid for both.

The facts come from an installed package and never enter the repository. In a second turn each sees what the other said.
Refuses to know models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ratchet.data.countries import large_countries
from ratchet.loops.skill.scoring import normalise
from ratchet.loops.team.tasks.protocol import Item, Sizes, Turn
from ratchet.loops.team.tasks.splitting import split

CONTINENTS = {"Americas": ["Americas", "America", "North America", "South America", "Central America"]}
"""Names that count for what the package calls a region."""
EXACT, BEGINS, BOTH = 0.4, 0.2, 0.2
"""What an agent's answer is worth when it is the fact alone, or the fact and more words; and what both alone add."""


class Helper:
    """159 countries, a country in one split only."""

    name = "helper"

    def __init__(self, seed: int, sizes: Sizes) -> None:
        self.train, self.evaluation = split(countries(), seed, sizes, "helper task")

    def prompts(self, item: Item, history: Sequence[Turn]) -> list[str]:
        """The continent for agent 0, the capital for agent 1; after a turn, with the other's first line above."""
        country = item["country"]
        asked = [f"Country: {country}\n{name}:" for name in ("Continent", "Capital")]
        if not history:
            return asked
        continent, capital = (first_line(said) for said in history[-1].completions)
        return [f"Capital: {capital}\n{asked[0]}", f"Continent: {continent}\n{asked[1]}"]

    def transition(self, item: Item, joint: Sequence[str], turn: int, history: Sequence[Turn]) -> list[str] | None:
        """A turn to think again, until both are right."""
        return None if joint_worth(item, *joint) == 1 else self.prompts(item, history)

    def reward(self, completions: list[list[str]], items: list[Item]) -> list[float]:
        """0 to 1 for each pair."""
        return [joint_worth(item, *joint) for item, joint in zip(items, zip(*completions, strict=True), strict=True)]


def joint_worth(item: Item, continent: str, capital: str) -> float:
    """0 to 1: what both answers are worth, and `BOTH` when each is the fact alone."""
    parts = worth(continent, item["continents"]), worth(capital, item["capitals"])
    return sum(parts) + (BOTH if parts == (EXACT, EXACT) else 0.0)


def worth(said: str, facts: Sequence[str]) -> float:
    """`EXACT` when the first line is one of `facts` (case, articles and punctuation do not count), `BEGINS` when it
    begins with one, else 0."""
    line = normalise(first_line(said))
    wanted = [normalise(fact) for fact in facts]
    if line in wanted:
        return EXACT
    return BEGINS if any(line.startswith(f"{each} ") for each in wanted) else 0.0


def first_line(said: str) -> str:
    """What stands before the first line's end, without spaces around it."""
    return said.strip().split("\n")[0].strip()


def countries() -> dict[str, dict[str, Any]]:
    """Name → item, of countries of a million people or more. Raises InputError when the package is not installed."""
    return {
        told["name"]: {
            "prompt": told["name"],
            "country": told["name"],
            "continents": CONTINENTS.get(told["region"], [told["region"]]),
            "capitals": [told["capital"]],
        }
        for told in large_countries("helper task")
        if told.get("region")
    }
