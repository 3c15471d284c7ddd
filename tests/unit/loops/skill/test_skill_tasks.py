"""Task sets: what is read, what is refused, and how they are split."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import toy_skill
from ratchet.core.errors import InputError
from ratchet.core.fingerprint import differences
from ratchet.loops.skill import facts, session
from ratchet.loops.skill.parameters import Source, TaskParams
from ratchet.loops.skill.preflight import examine
from ratchet.loops.skill.records import Split
from ratchet.loops.skill.scoring import normalise
from ratchet.loops.skill.tasks import TaskSet, load

SIZES: dict[str, Any] = {"val_size": 4, "test_size": 6}


def task(number: int, **more: Any) -> dict[str, Any]:
    return {"id": f"t{number}", "question": f"What is {number}?", "answers": [str(number)]} | more


def read(folder: Path, lines: list[Any], **params: Any) -> TaskSet:
    skills = folder / "skills"
    skills.mkdir(exist_ok=True)
    text = "".join((line if isinstance(line, str) else json.dumps(line, ensure_ascii=False)) + "\n" for line in lines)
    (skills / "own.jsonl").write_text(text, encoding="utf-8")
    made = TaskParams(source=Source.FILE, file=str(skills / "own.jsonl"), **(SIZES | params))
    return load(made, skills)


def ids(tasks: TaskSet) -> dict[str, list[str]]:
    return {str(split): [each.id for each in found] for split, found in tasks.splits.items()}


def test_tasks_of_a_file_are_split_by_question_and_the_order_of_lines_does_not_count(tmp_path: Path) -> None:
    lines = [task(number) for number in range(20)]
    first, second = read(tmp_path, lines), read(tmp_path, lines[::-1])
    assert ids(first) == ids(second)
    assert {name: len(found) for name, found in ids(first).items()} == {"train": 10, "val": 4, "test": 6}
    assert ids(read(tmp_path, lines, split_seed=1)) != ids(first)


def test_tasks_that_ask_the_same_stay_in_one_split(tmp_path: Path) -> None:
    twins = [task(number, id=f"t{number}-{k}", question=f"What is {number}?" + " !" * k) for number in range(12)
             for k in range(2)]  # fmt: skip
    found = read(tmp_path, twins, val_size=4, test_size=4)
    where = {}
    for split in Split:
        for each in found[split]:
            assert where.setdefault(normalise(each.question), split) is split


def test_tasks_that_name_their_split_keep_it_and_a_question_in_two_is_refused(tmp_path: Path) -> None:
    lines = [task(number, split=["train", "val", "test"][number % 3]) for number in range(9)]
    assert ids(read(tmp_path, lines))["val"] == ["t1", "t4", "t7"]
    with pytest.raises(InputError, match="'t0' in train and 'leak' in test ask the same"):
        read(tmp_path, [*lines, task(0, id="leak", question="what is 0", split="test")])


def test_tasks_that_name_their_split_are_another_set_when_relabelled_and_the_same_in_another_order(
    tmp_path: Path,
) -> None:
    lines = [task(number, split=["train", "val", "test"][number % 3]) for number in range(9)]
    before, again = read(tmp_path, lines), read(tmp_path, lines[::-1])
    assert (again.splits, identity(again)) == (before.splits, identity(before))
    lines[0]["split"], lines[2]["split"] = "test", "train"
    leaked = read(tmp_path, lines)
    assert [change.key for change in differences(identity(before), identity(leaked))] == ["inputs.tasks"]


def identity(tasks: TaskSet) -> dict[str, Any]:
    """That of a run with `tasks`."""
    return session.identity(session.Request(toy_skill.params(), tasks, ""), toy_skill.settings(Path()))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (task(1, id="../../x"), "id '../../x' is not safe"),
        (task(1, id=".hidden"), "is not safe"),
        (task(1, id=7), "is not safe"),
        (task(0), "id 't0' stands twice"),
        (task(1, question=" "), "question is ' '"),
        (task(1, answers="Paris"), "answers is 'Paris'"),
        (task(1, answers=[]), "answers is []"),
        (task(1, answers=[3]), r"answers is [3]"),
        (task(1, anwsers=["x"]), "unknown key 'anwsers'"),
        (task(1, split="dev"), "split is 'dev'"),
        ("{not json", "own.jsonl:21: is no JSON"),
        ('["a"]', "holds a list"),
    ],
)
def test_task_that_is_wrong_is_named_with_its_place(line: Any, said: str, tmp_path: Path) -> None:
    lines: list[Any] = [task(number) for number in [0, *range(2, 21)]]
    with pytest.raises(InputError) as error:
        read(tmp_path, [*lines, line])
    assert said in str(error.value)


def test_tasks_too_few_for_the_splits_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="10 tasks are not more than val_size 4"):
        read(tmp_path, [task(number) for number in range(10)])


def test_tasks_with_an_empty_split_are_refused(tmp_path: Path) -> None:
    lines = [task(number, split="test" if number % 2 else "train") for number in range(9)]
    with pytest.raises(InputError, match="the val split is empty"):
        read(tmp_path, lines)


def test_tasks_that_are_not_utf_8_are_refused_with_the_byte(tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_bytes(b'{"id": "a", "question": "Caf\xe9?", "answers": ["x"]}\n')
    with pytest.raises(InputError, match="not UTF-8 at byte 28"):
        load(TaskParams(source=Source.FILE, file=str(tmp_path / "own.jsonl")), tmp_path)


def test_tasks_of_a_file_keep_letters_that_elsewhere_end_a_line(tmp_path: Path) -> None:
    text = "one\u2028two\u0085three"
    found = read(tmp_path, [task(0, answers=[text]), *map(task, range(1, 21))])
    assert [text] in [list(each.answers) for split in found.splits.values() for each in split]


def test_tasks_outside_skills_are_refused_since_dvc_would_not_see_a_change(tmp_path: Path) -> None:
    (tmp_path / "skills").mkdir()
    (tmp_path / "own.jsonl").write_text("")
    with pytest.raises(InputError, match="does not lie below"):
        load(TaskParams(source=Source.FILE, file=str(tmp_path / "own.jsonl")), tmp_path / "skills")


CLASS = """
class Sums:
    def tasks(self):
        return [{"id": f"s{n}", "question": f"{n} + {n}?", "answers": [str(2 * n)]} for n in range(20)]

    def score(self, task, said):
        return 1.0 if said == task.answers[0] else 0.5

class NoScore:
    def tasks(self):
        return []

class Wild(Sums):
    def score(self, task, said):
        return {"x": 7, "three": (1, 1, 1)}[said]

class Unmade(Sums):
    def __init__(self):
        self.words = open("no-such-file")

class Bare(Sums):
    def tasks(self):
        yield {"id": "s0"}["question"]
"""


def own_class(folder: Path, name: str, text: str = CLASS) -> TaskSet:
    (folder / "mine.py").write_text(text)
    return load(TaskParams(source=Source.CLASS, python=f"{folder}/mine.py:{name}", **SIZES), folder)


def test_tasks_of_a_class_are_read_and_scored_by_it(tmp_path: Path) -> None:
    found = own_class(tmp_path, "Sums")
    first = found[Split.TRAIN][0]
    right, wrong = found.score(first, first.answers[0]), found.score(first, "x")
    assert (right.hard, right.soft, right.fail_reason) == (1, 1.0, "")
    assert (wrong.hard, wrong.soft) == (0, 0.5)
    assert wrong.fail_reason


@pytest.mark.parametrize(
    ("name", "said"), [("Smus", "has no class 'Smus'"), ("NoScore", r"lacks the method score\(\)")]
)
def test_class_that_is_not_a_task_set_is_refused(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        own_class(tmp_path, name)


def test_class_whose_score_is_out_of_range_is_refused(tmp_path: Path) -> None:
    found = own_class(tmp_path, "Wild")
    for said, told in {"x": r"score\(\) gave 7", "three": r"score\(\) gave \(1, 1, 1\)",
                       "y": r"score\(\) of s\d+: raised KeyError: 'y' \(.*mine\.py:\d+\)"}.items():  # fmt: skip
        with pytest.raises(InputError, match=told):
            found.score(found[Split.TRAIN][0], said)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("Unmade", CLASS, r"Unmade\(\): raised FileNotFoundError: .*no-such-file.* \(.*mine\.py:\d+\)"),
        ("Bare", CLASS, r"tasks\(\): raised KeyError: 'question' \(.*mine\.py:\d+\)"),
        (
            "Sums",
            "import no_such_module\n" + CLASS,
            r"mine\.py cannot be imported: ModuleNotFoundError: .*mine\.py:1\)",
        ),
        ("Sums", "class Sums:\n  def\n", r"mine\.py cannot be imported: SyntaxError: .*line 2\)"),
    ],
)
def test_class_that_raises_is_told_in_one_line_and_doctor_goes_on(
    name: str, text: str, told: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=told) as error:
        own_class(tmp_path, name, text)
    assert "\n" not in str(error.value)
    tasks = {"source": "class", "python": f"{tmp_path}/mine.py:{name}", **SIZES}
    first, *others = examine(toy_skill.params(tasks=tasks), toy_skill.settings(tmp_path), ask=False, folder=tmp_path)
    assert (first.good, bool(others)) == (False, True)


@pytest.mark.parametrize(
    ("file", "text", "same"),
    [
        ("mine.py", CLASS.replace("else 0.5", "else 0.25"), False),
        ("mine.py", "from skills import words\n" + CLASS + "    # said\n", True),
        ("words.py", "MORE = 2\n", False),
    ],
)
def test_class_that_scores_otherwise_makes_another_run_and_a_comment_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str, same: bool
) -> None:
    folder = tmp_path / "skills"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    (folder / "words.py").write_text("MORE = 1\n")
    before = identity(own_class(folder, "Sums", "from skills import words\n" + CLASS))
    (folder / file).write_text(text)
    after = identity(own_class(folder, "Sums", (folder / "mine.py").read_text()))
    assert [change.key for change in differences(before, after)] == ([] if same else ["inputs.scorer"])


def test_tasks_of_packages_are_those_that_the_manifests_pin() -> None:
    root = Path(__file__).resolve().parents[4] / "skills"
    for name, count in (("elements", 118), ("capitals", 159)):
        found = load(TaskParams(package=name), root)  # type: ignore[arg-type]
        assert sum(map(len, found.splits.values())) == count
        assert len(found[Split.TEST]) >= 60


def test_tasks_of_a_package_that_changed_are_refused(tmp_path: Path) -> None:
    values = facts.tasks("elements")
    (tmp_path / "elements.json").write_text(json.dumps(facts.manifest("elements", values) | {"sha256": "0"}))
    with pytest.raises(InputError, match="gives other tasks"):
        load(TaskParams(package="elements"), tmp_path)
