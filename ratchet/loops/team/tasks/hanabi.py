"""Two-player Hanabi from open-spiel as text: in a turn both players name a move, and they are played one by one.

A small deck, so that an episode is short. The state of the game is replayed from what was said, so nothing of it must
be kept. Refuses to know who plays.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ratchet.core.errors import InputError
from ratchet.core.seeds import derive
from ratchet.loops.team.tasks.protocol import TURNS, Item, Sizes, Turn
from ratchet.loops.team.tasks.splitting import split

INSTALL = "pip install -c constraints.txt -e '.[team]'"
GAME = "hanabi(players=2,colors=2,ranks=3,hand_size=2,max_information_tokens=3,max_life_tokens=2)"
DEALS = 320
"""Deals to split when the sizes leave the number open."""
LEGAL, LIFE = 0.25, 0.25
"""What naming a move that the rules allow is worth, and what a lost life costs; a point is worth 1."""
MOVE = re.compile(r"\W*(?:(play|discard)\s+([1-9])|hint\s+([A-Z1-9]))\b", re.IGNORECASE)
_ACTION = re.compile(r"\((Play|Discard|Reveal player \+1 (?:color|rank)) (\w)\)")
_FALLBACK = {"discard": 0, "hint": 1, "play": 2}
"""What is played for a player whose answer is no legal move: the first legal move of the first kind there is."""


@dataclass(frozen=True)
class Round:
    """What a round came to."""

    points: int
    lives_lost: int
    legal: int

    @property
    def reward(self) -> float:
        """Points, plus a share for each legal answer, minus one for each lost life."""
        return self.points + LEGAL * self.legal - LIFE * self.lives_lost


class Hanabi:
    """Deals of a deck with two colours of three ranks; the items differ in the deal."""

    name = "hanabi"

    def __init__(self, seed: int, sizes: Sizes) -> None:
        wanted = sum(sizes) if all(sizes) else max(DEALS, sum(sizes))
        deals = {f"{seed}-{number}": derive(seed, "hanabi", number) for number in range(wanted)}
        items: dict[str, dict[str, Any]] = {
            name: {"id": f"deal-{name}", "deal": deal, "prompt": _views(_start(deal))[0]}
            for name, deal in deals.items()
        }
        self.train, self.evaluation = split(items, seed, sizes, "hanabi task")

    def prompts(self, item: Item, history: Sequence[Turn]) -> list[str]:
        """What each player sees at the beginning of the round."""
        return _views(_replay(item, history).state)

    def reward(self, completions: list[list[str]], items: list[Item]) -> list[float]:
        """Points, legal answers and lost lives of the round that follows the item's earlier turns."""
        joints = zip(*completions, strict=True)
        return [
            _replay(item, item.get(TURNS, ())).round(joint).reward
            for item, joint in zip(items, joints, strict=True)
        ]  # fmt: skip

    def transition(self, item: Item, joint: Sequence[str], turn: int, history: Sequence[Turn]) -> list[str] | None:
        """The players' views after the round, or None when the game is over."""
        game = _replay(item, history)
        return None if game.state.is_terminal() else _views(game.state)


class _Game:
    """One game: the state of open-spiel and how many cards were drawn, which is where the deal's cards go on."""

    def __init__(self, deal: int) -> None:
        self.state = _game().new_initial_state()
        self._deal, self._drawn = deal, 0
        self._draw()

    def round(self, joint: Sequence[str]) -> Round:
        """Play what both players said."""
        points, lives, legal = _fireworks(self.state), _lives(self.state), 0
        for said in joint:
            if self.state.is_terminal():
                break
            action, was_legal = _action(self.state, said)
            legal += was_legal
            self.state.apply_action(action)
            self._draw()
        return Round(_fireworks(self.state) - points, lives - _lives(self.state), legal)

    def _draw(self) -> None:
        while self.state.is_chance_node():
            place = derive(self._deal, "card", self._drawn) / 2**63
            self._drawn += 1
            actions, shares = zip(*self.state.chance_outcomes(), strict=True)
            drawn = bisect(list(itertools.accumulate(shares)), place)
            self.state.apply_action(actions[min(drawn, len(actions) - 1)])  # the shares may sum to a little under 1


def _start(deal: int) -> Any:
    return _Game(deal).state


def _replay(item: Item, history: Sequence[Turn]) -> _Game:
    game = _Game(item["deal"])
    for turn in history:
        game.round(turn.completions)
    return game


@cache
def _game() -> Any:
    try:
        import pyspiel  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise InputError("hanabi task", "package open-spiel is not installed", INSTALL) from None
    return pyspiel.load_game(GAME)


def moves(state: Any) -> dict[str, int]:
    """The legal moves of the player to move, as an agent writes them, and their actions: `play 1`, `hint R`, …"""
    player, found = state.current_player(), {}
    for action in state.legal_actions():
        kind, which = _ACTION.fullmatch(state.action_to_string(player, action)).groups()  # pyright: ignore
        text = f"hint {which}" if kind.startswith("Reveal") else f"{kind.lower()} {int(which) + 1}"
        found[text] = action
    return found


def _action(state: Any, said: str) -> tuple[int, bool]:
    """The action that `said` begins with and True, or the fallback and False."""
    legal = moves(state)
    if found := MOVE.match(said):
        kind, card, hint = found.groups()
        text = f"{kind.lower()} {card}" if kind else f"hint {hint.upper()}"
        if text in legal:
            return legal[text], True
    return legal[min(legal, key=lambda text: (_FALLBACK[text.split()[0]], text))], False


def _views(state: Any) -> list[str]:
    return [_view(_lines(state, player)) for player in range(2)]


def _view(lines: list[str]) -> str:
    """What a player sees, in few words; open-spiel lists the own cards first, as `XX || known|possible`."""
    told = dict(line.split(": ", 1) for line in lines if ": " in line)
    hands = "\n".join(lines[lines.index("Hands:") + 1 :]).partition("Deck size")[0]
    own, others = ([line for line in hand.splitlines() if "||" in line] for hand in hands.split("-----"))
    known = " ".join(line.split("||")[1].split("|")[0].strip() for line in own)
    return (
        f"Hanabi. Piles {told['Fireworks'].strip()}. Hints {told['Info tokens']}. Lives {told['Life tokens']}. "
        f"Partner holds {' '.join(line[:2] for line in others)}. You hold {known}.\n"
        "Moves: play 1, discard 2, hint R, hint 3.\nMove:"
    )


def _lines(state: Any, player: int) -> list[str]:
    return [line for line in state.observation_string(player).splitlines() if line != "Cur player"]


def _fireworks(state: Any) -> int:
    return sum(int(digit) for digit in re.findall(r"[A-Z](\d)", _told(state, "Fireworks")))


def _lives(state: Any) -> int:
    return int(_told(state, "Life tokens"))


def _told(state: Any, name: str) -> str:
    return next(line.partition(": ")[2] for line in str(state).splitlines() if line.startswith(name))
