"""A user's own task: rewards by value and by name, formatters, transitions, items from files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ratchet.core.errors import InfrastructureError, InputError
from ratchet.loops.team.tasks import CallableTask, Sizes, TransitionTask, Turn, has_transition, load_task, own_task
from ratchet.loops.team.tasks.own import named
from ratchet.loops.team.tasks.prompt_files import read_items

ITEMS = [{"prompt": "one", "answer": 1}, {"prompt": "two", "answer": 2}]

SOURCE = """
from ratchet.loops.team.tasks import CallableTask

def ratio(first, second):
    return [float(len(b) > len(a)) for a, b in zip(first, second)]

def loud(item):
    return item["prompt"].upper()

def onward(prompt, agent_completions, num_agents, prompt_history_per_agent, response_history_per_agent):
    return [f"{prompt}/{said}" for said in agent_completions]

def make(seed, sizes):
    return CallableTask(ratio, [{"prompt": f"{seed}-{n}"} for n in range(sizes.train)], agents=2)

def make_nothing(seed, sizes):
    return object()

NUMBER = 3
"""


@pytest.fixture
def rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_rewards.py").write_text(SOURCE)
    return tmp_path


def lines(path: Path, *values: object) -> Path:
    path.write_text("".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values), encoding="utf-8")
    return path


def test_callable_task_reward_gets_one_list_per_agent_and_what_else_it_names() -> None:
    seen: list[Any] = []

    def reward(first: list[str], second: list[str], batch_items: Any = None, prompts: Any = None) -> list[float]:
        seen.append((first, second, batch_items, prompts))
        return [item["answer"] for item in batch_items]

    task = CallableTask(reward, ITEMS, agents=2)
    assert task.reward([["a", "b"], ["c", "d"]], [ITEMS[0], ITEMS[1]]) == [1, 2]
    assert seen == [(["a", "b"], ["c", "d"], ITEMS, ["one", "two"])]
    assert task.name == "reward"


def test_callable_task_reward_processor_changes_each_number() -> None:
    task = CallableTask(lambda one: [1.0] * len(one), ITEMS, agents=1, reward_processor=lambda value: 100 * value)
    assert task.reward([["a", "b"]], [ITEMS[0], ITEMS[1]]) == [100.0, 100.0]


def test_callable_task_formatters_are_one_for_all_or_one_each() -> None:
    def shout(item: Any) -> str:
        return item["prompt"].upper()

    def plain(item: Any) -> str:
        return item["prompt"]

    assert CallableTask(len, ITEMS, agents=2).prompts(ITEMS[0], ()) == ["one", "one"]
    assert CallableTask(len, ITEMS, agents=2, formatters=shout).prompts(ITEMS[0], ()) == ["ONE", "ONE"]
    assert CallableTask(len, ITEMS, agents=2, formatters=[shout, plain]).prompts(ITEMS[0], ()) == ["ONE", "one"]
    with pytest.raises(InputError, match="formatters: 2 for 3 agents"):
        CallableTask(len, ITEMS, agents=3, formatters=[shout, plain])


@pytest.mark.parametrize(("passthrough", "prompts"), [(True, ["a!", "b!"]), (False, ["A!", "[b!]"])])
def test_transition_task_texts_pass_through_or_are_formatted(passthrough: bool, prompts: list[str]) -> None:
    asked: dict[str, Any] = {}

    def onward(**told: Any) -> list[str]:
        asked.update(told)
        return ["a!", "b!"]

    def shout(item: Any) -> str:
        return item["prompt"].upper()

    def bracket(item: Any, external_prompts: str | None = None) -> str:
        return f"[{external_prompts}]"

    task = TransitionTask(len, ITEMS, agents=2, formatters=[shout, bracket], transition=onward, passthrough=passthrough)
    history = [Turn(("p0", "p1"), ("s0", "s1"), 0.0), Turn(("q0", "q1"), ("t0", "t1"), 0.0)]
    assert task.transition(ITEMS[0], ("t0", "t1"), 1, history) == prompts
    assert asked == {
        "prompt": "one", "agent_completions": ["t0", "t1"], "num_agents": 2,
        "prompt_history_per_agent": [["p0", "q0"], ["p1", "q1"]],
        "response_history_per_agent": [["s0", "t0"], ["s1", "t1"]],
    }  # fmt: skip


def test_transition_task_none_ends_the_episode_and_a_wrong_count_is_handed_on() -> None:
    given: list[Sequence[str] | None] = [None, ["only one"]]
    task = TransitionTask(len, ITEMS, agents=2, transition=lambda **told: given.pop(0))
    history = [Turn(("p0", "p1"), ("s0", "s1"), 0.0)]
    assert task.transition(ITEMS[0], ("s0", "s1"), 0, history) is None
    assert task.transition(ITEMS[0], ("s0", "s1"), 0, history) == ["only one"]


def test_own_task_reads_names_and_files(rewards: Path) -> None:
    train, held_out = lines(rewards / "train.jsonl", *ITEMS), lines(rewards / "eval.jsonl", {"prompt": "three"})
    task = own_task(
        "my_rewards.py:ratio", train, held_out, agents=2, formatters=["my_rewards.py:loud"],
        external_transition="my_rewards.py:onward", passthrough=True,
    )  # fmt: skip
    assert (task.train, task.evaluation) == (ITEMS, [{"prompt": "three"}])
    assert task.prompts(ITEMS[0], ()) == ["ONE", "ONE"]
    assert task.reward([["a"], ["bb"]], [ITEMS[0]]) == [1.0]
    assert has_transition(task)
    assert task.transition(ITEMS[0], ("x", "y"), 0, [Turn(("p", "p"), ("x", "y"), 0.0)]) == ["one/x", "one/y"]
    assert not has_transition(own_task("my_rewards.py:ratio", train, held_out, agents=2))


def test_own_task_prompt_that_is_trained_on_and_held_out_is_refused(rewards: Path) -> None:
    train, held_out = lines(rewards / "train.jsonl", *ITEMS), lines(rewards / "eval.jsonl", ITEMS[1])
    with pytest.raises(InputError, match=r"eval\.jsonl: shares 1 prompts with .*train\.jsonl, such as 'two'"):
        own_task("my_rewards.py:ratio", train, held_out, agents=2)


def test_load_task_calls_a_maker_and_refuses_what_is_no_task(rewards: Path) -> None:
    task = load_task("my_rewards.py:make", 7, Sizes(2, 0))
    assert [item["prompt"] for item in task.train] == ["7-0", "7-1"]
    with pytest.raises(InputError, match=r"my_rewards\.py:make_nothing: object has no 'name'"):
        load_task("my_rewards.py:make_nothing", 7, Sizes(2, 0))


def test_own_code_that_raises_is_told_in_one_line_with_its_place(
    rewards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(rewards))
    (rewards / "torn.py").write_text("def reward(:\n")
    (rewards / "broken.py").write_text("LIMIT = {}['limit']\n")
    (rewards / "maker.py").write_text("def make(seed, sizes):\n    return 1 / 0\n")
    for name, told in {
        "torn.py:reward": r"torn\.py cannot be imported: SyntaxError: .*line 1\)",
        "broken:reward": r"broken cannot be imported: KeyError: 'limit' \(.*broken\.py:1\)",
        "broken.py:reward": r"broken\.py cannot be imported: KeyError: 'limit' \(.*broken\.py:1\)",
        "maker.py:make": r"maker\.py:make: raised ZeroDivisionError: division by zero \(.*maker\.py:2\)",
    }.items():
        with pytest.raises(InputError, match=told) as error:
            load_task(name, 7, Sizes(1, 0))
        assert "\n" not in str(error.value)


def test_error_of_ratchet_itself_below_own_code_is_told_as_it_is(rewards: Path) -> None:
    imports = "from ratchet.core.errors import InfrastructureError\n"
    raises = "    raise InfrastructureError('endpoint', 'does not answer', 'wait')\n"
    (rewards / "asks.py").write_text(f"{imports}def make(seed, sizes):\n{raises}")
    (rewards / "asks_at_once.py").write_text(f"{imports}if True:\n{raises}")
    for name in ("asks.py:make", "asks_at_once.py:make"):
        with pytest.raises(InfrastructureError, match=r"^endpoint: does not answer; wait$"):
            load_task(name, 7, Sizes(1, 0))


def test_named_takes_modules_and_says_what_is_wrong(rewards: Path) -> None:
    assert named("json:dumps", "x") is json.dumps
    for name, said in {
        "ratio": "'ratio' names no function",
        "no_such_module_here:f": "no_such_module_here cannot be imported",
        "missing.py:f": "missing.py cannot be imported: no such file",
        "my_rewards.py:nothing": "my_rewards.py has no function 'nothing'",
        "my_rewards.py:NUMBER": "my_rewards.py has no function 'NUMBER'",
    }.items():
        with pytest.raises(InputError, match=said):
            named(name, "x")


def test_read_items_json_lines_keep_every_key_and_letter(tmp_path: Path) -> None:
    items = [{"prompt": "a\u2028b", "more": [1, {"x": None}]}, {"prompt": "日本"}]
    assert read_items(lines(tmp_path / "a.jsonl", *items)) == items


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"prompt": "a"}\n{"prompt": ', r"a\.jsonl:2: is no JSON"),
        ('{"prompt": "a"}\n["b"]\n', r"a\.jsonl:2: holds a list"),
        ('{"prompt": "a"}\n{"text": "b"}\n', r"item 2 has the prompt None \(its keys: text\)"),
        ('{"prompt": "  "}\n', r"item 1 has the prompt ' '"),
        ("\n", "holds no item"),
    ],
)
def test_read_items_unfit_lines_are_named(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_items(path)


def test_read_items_missing_file_and_wrong_encoding_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        read_items(tmp_path / "none.jsonl")
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "\xe9"}')
    with pytest.raises(InputError, match="not UTF-8 at byte 12"):
        read_items(tmp_path / "latin.jsonl")


def saved(folder: Path, parts: list[list[dict[str, Any]]]) -> Path:
    """A folder as `Dataset.save_to_disk` of the library datasets lays it out."""
    folder.mkdir(parents=True)
    names = [f"data-{number:05d}-of-{len(parts):05d}.arrow" for number in range(len(parts))]
    for name, rows in zip(names, parts, strict=True):
        table = pa.Table.from_pylist(rows)
        with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    return folder


def test_read_items_saved_dataset_is_read_without_the_library(tmp_path: Path) -> None:
    folder = saved(tmp_path / "set", [[ITEMS[0]], [ITEMS[1]]])
    assert read_items(folder) == ITEMS


def test_read_items_saved_dataset_of_splits_says_to_name_one(tmp_path: Path) -> None:
    saved(tmp_path / "set/train", [ITEMS])
    (tmp_path / "set/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(InputError, match=r"holds the splits train, test; name one: .*set/train"):
        read_items(tmp_path / "set")
    assert read_items(tmp_path / "set/train") == ITEMS


def test_read_items_folder_that_is_no_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no state\.json"):
        read_items(tmp_path)
    folder = saved(tmp_path / "set", [ITEMS])
    (folder / "data-00000-of-00001.arrow").write_bytes(b"torn")
    with pytest.raises(InputError, match="cannot be read as a saved dataset"):
        read_items(folder)
