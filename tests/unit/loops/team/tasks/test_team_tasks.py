"""The shipped tasks of the team loop: prompts, rewards, what is held out."""

from __future__ import annotations

import builtins
import math
import random
from collections.abc import Sequence
from typing import Any

import pytest

from ratchet.core.errors import InputError
from ratchet.loops.team.tasks import MultiTurn, Sizes, Task, Turn, at_turn, hanabi, has_transition, load_task
from ratchet.loops.team.tasks.countries import BEGINS, BOTH, EXACT, countries, joint_worth, worth
from ratchet.loops.team.tasks.stories import length_ratio

SIZES = Sizes(16, 8)


def multi_turn(name: str) -> MultiTurn:
    task = load_task(name, 0, SIZES)
    assert has_transition(task)
    return task


@pytest.mark.parametrize("name", ["helper", "stories", "hanabi"])
def test_task_items_are_split_without_a_shared_one_and_the_seed_alone_decides(name: str) -> None:
    task, again, other = load_task(name, 3, SIZES), load_task(name, 3, SIZES), load_task(name, 4, SIZES)
    assert (len(task.train), len(task.evaluation)) == SIZES
    assert (task.train, task.evaluation) == (again.train, again.evaluation)
    assert task.evaluation != other.evaluation
    key = "deal" if name == "hanabi" else "prompt"
    seen = [item[key] for item in task.train + task.evaluation]
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize("name", ["helper", "stories", "hanabi"])
def test_task_prompts_are_one_text_per_agent_and_rewards_one_number_per_place(name: str) -> None:
    task = load_task(name, 0, SIZES)
    for item in task.train:
        prompts = task.prompts(item, ())
        assert len(prompts) == 2
        assert all(prompts)
    rewards = task.reward([["a", "bb"], ["aa", ""]], [task.train[0], task.train[1]])
    assert len(rewards) == 2
    assert all(math.isfinite(each) for each in rewards)


@pytest.mark.parametrize("name", ["helper", "stories", "hanabi"])
def test_task_held_out_items_stay_when_more_are_trained_on(name: str) -> None:
    few, many = load_task(name, 0, Sizes(16, 8)), load_task(name, 0, Sizes(0, 8))
    assert len(many.train) > 16
    if name != "hanabi":  # its pool of deals grows with the sizes
        assert few.evaluation == many.evaluation


@pytest.mark.parametrize(("name", "pool"), [("helper", 159), ("stories", 256)])
def test_task_sizes_beyond_the_prompts_are_refused(name: str, pool: int) -> None:
    task = load_task(name, 0, Sizes(0, 10))
    assert len(task.train) == pool - 10
    with pytest.raises(InputError, match=rf"{pool} different prompts are fewer than {pool} to train \+ 1 to evaluate"):
        load_task(name, 0, Sizes(pool, 1))


def test_task_of_an_unknown_name_is_refused() -> None:
    with pytest.raises(InputError, match=r"team\.task: 'storys' is no task; write helper, stories, hanabi"):
        load_task("storys", 0, SIZES)


@pytest.mark.parametrize(
    ("first", "second", "reward"),
    [
        ("abcd", "a" * 8, 1.0),
        ("abcd", "a" * 12, 1.0),
        ("abcd", "a" * 4, math.exp(-1)),
        ("abcd", "a" * 20, math.exp(-2)),
        ("", "a", 0.0),
        ("abcd", "", math.exp(-2)),
    ],
)
def test_stories_reward_is_one_from_two_to_three_times_and_falls_off_outside(
    first: str, second: str, reward: float
) -> None:
    task = load_task("stories", 0, SIZES)
    assert length_ratio(first, second) == pytest.approx(reward, abs=1e-15)
    assert task.reward([[first], [second]], [task.train[0]]) == [length_ratio(first, second)]


def test_stories_both_agents_get_the_same_prompt() -> None:
    task = load_task("stories", 0, SIZES)
    first, second = task.prompts(task.train[0], ())
    assert first == second == task.train[0]["prompt"]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (" Paris\nFrance", EXACT),
        ("paris.", EXACT),
        ("\nThe Paris\n", EXACT),
        (" Paris, France", BEGINS),
        (" In Paris", 0.0),
        (" Parisian", 0.0),
        ("", 0.0),
        (" Lyon\nParis", 0.0),
    ],
)
def test_helper_answer_counts_by_its_first_line(said: str, expected: float) -> None:
    assert worth(said, ["Paris"]) == expected


def test_helper_pair_earns_one_when_both_are_exact_and_either_name_of_america_counts() -> None:
    item = countries()["Brazil"]
    assert joint_worth(item, " South America", " Brasília") == pytest.approx(2 * EXACT + BOTH) == 1.0
    assert joint_worth(item, "Americas", "Rio") == EXACT
    assert joint_worth(item, "Americas", "Brasília, of course") == EXACT + BEGINS
    assert joint_worth(item, "Asia", "x") == 0.0


def test_helper_second_turn_shows_each_what_the_other_said_and_ends_when_both_are_right() -> None:
    task = multi_turn("helper")
    item = countries()["Japan"]
    prompts = tuple(task.prompts(item, ()))
    assert prompts == ("Country: Japan\nContinent:", "Country: Japan\nCapital:")
    history = [Turn(prompts, (" Africa\nx", " Tokyo"), 0.4)]
    again = task.transition(item, history[0].completions, 0, history)
    assert again == ["Capital: Tokyo\n" + prompts[0], "Continent: Africa\n" + prompts[1]]
    done = [Turn(prompts, (" Asia", " Tokyo"), 1.0)]
    assert task.transition(item, done[0].completions, 0, done) is None


def test_helper_constant_answers_earn_little() -> None:
    items = list(countries().values())
    earned = [joint_worth(item, "Africa", "London") for item in items]
    assert sum(earned) / len(earned) < 0.13


def play(task: Task, item: dict[str, Any], rounds: Sequence[tuple[str, str]]) -> tuple[list[float], list[str] | None]:
    """Rewards of each round, and the prompts after the last one."""
    assert has_transition(task)
    history: list[Turn] = []
    following: list[str] | None = task.prompts(item, ())
    for joint in rounds:
        assert following is not None
        (reward,) = task.reward([[joint[0]], [joint[1]]], [at_turn(item, history)])
        history.append(Turn(tuple(following), joint, reward))
        following = task.transition(item, joint, len(history) - 1, history)
    return [turn.reward for turn in history], following


def test_hanabi_views_hide_the_own_cards_and_show_the_partners() -> None:
    task = load_task("hanabi", 0, SIZES)
    for item in task.train:
        state = hanabi._start(item["deal"])
        cards = [line[:2] for line in str(state).splitlines() if "||" in line]
        first, second = task.prompts(item, ())
        assert f"Partner holds {' '.join(cards[2:])}. You hold XX XX." in first
        assert f"Partner holds {' '.join(cards[:2])}. You hold XX XX." in second
        assert len(first) < 160


def test_hanabi_playing_a_one_earns_a_point_and_a_wrong_card_costs_a_life() -> None:
    task = load_task("hanabi", 0, Sizes(40, 8))
    for item in task.train:
        cards = [line[:2] for line in str(hanabi._start(item["deal"])).splitlines() if "||" in line]
        good = 1.0 if cards[0][1] == "1" else -hanabi.LIFE
        rewards, _ = play(task, item, [("play 1", "discard 1")])
        legal = 1  # no hint token is missing at first, so nobody may discard unless a three was finished
        assert rewards[0] == pytest.approx(good + hanabi.LEGAL * legal)


def test_hanabi_answer_that_is_no_legal_move_plays_the_fallback_and_earns_nothing_for_it() -> None:
    task = load_task("hanabi", 0, SIZES)
    item = task.train[0]
    rewards, following = play(task, item, [("I would rather not", "hint 9")])
    assert rewards == [0.0]
    assert following is not None
    assert "Hints 3. Lives 2." in following[0]  # a hint was given, as nothing could be discarded; a discard paid for it
    assert play(task, item, [("hint 9", "hint 9")]) == (rewards, following)


def test_hanabi_game_is_the_same_when_replayed_and_ends() -> None:
    task = load_task("hanabi", 0, SIZES)
    dice = random.Random(0)
    words = ["play 1", "play 2", "discard 1", "hint R", "hint 1", "hint y", "Play 2 please", ""]
    for item in task.train[:6]:
        rounds = [(dice.choice(words), dice.choice(words)) for _ in range(30)]
        for last in range(1, 31):
            rewards, following = play(task, item, rounds[:last])
            assert (rewards, following) == play(task, item, rounds[:last])
            if following is None:
                break
        assert following is None


def test_hanabi_rewards_of_all_rounds_add_up_to_the_final_score() -> None:
    task = load_task("hanabi", 0, SIZES)
    earned = set()
    for item in task.train:
        rewards, _ = play(task, item, [("play 1", "hint 1")] * 2)
        history = [Turn(("", ""), ("play 1", "hint 1"), reward) for reward in rewards]
        state = hanabi._replay(item, history).state
        lost = 2 - hanabi._lives(state)
        plays = 0.0 if state.is_terminal() else 2 * hanabi.LEGAL  # two plays; after the second life nobody hints
        hints = sum(rewards) - hanabi._fireworks(state) + hanabi.LIFE * lost - plays
        assert state.is_terminal() or hints in {0, hanabi.LEGAL, 2 * hanabi.LEGAL}
        earned.add(tuple(rewards))
    assert len(earned) > 3


def test_hanabi_moves_are_read_at_the_beginning_of_the_answer() -> None:
    assert hanabi.MOVE.match(" Play 2 or hint R")
    assert hanabi.MOVE.match("**hint Y**")
    assert not hanabi.MOVE.match("I play 2")
    assert not hanabi.MOVE.match("play 12")


def test_hanabi_without_open_spiel_is_one_line_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "pyspiel":
            raise ImportError(name)
        return real(name, *rest, **more)

    hanabi._game.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"hanabi task: package open-spiel is not installed; pip install .*\[team\]"):
        load_task("hanabi", 0, SIZES)
