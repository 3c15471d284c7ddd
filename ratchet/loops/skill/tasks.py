"""Task sets: read from JSON lines, from a class or from an installed package, checked, and split by question.

Knows tasks and files; refuses to know who answers. A question stands in one split only, whatever its id is.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from ratchet.core.errors import InputError
from ratchet.core.fingerprint import closure_digest, digest
from ratchet.data.json_lines import read_objects
from ratchet.loops.own_code import called, load_file
from ratchet.loops.skill import facts
from ratchet.loops.skill.parameters import Source, TaskParams
from ratchet.loops.skill.records import Row, Split, Task
from ratchet.loops.skill.rollout import Scorer
from ratchet.loops.skill.scoring import normalise, score

FOLDER = Path("skills")
"""Where a user's tasks and seed documents lie: what DVC watches for the stage."""
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
DO = "see docs/skill_tasks.md"


class TaskClass(Protocol):
    """A user's own task set: two methods."""

    def tasks(self) -> Iterable[Mapping[str, Any]]:
        """Objects with id, question, answers and, for all or none, split."""
        ...

    def score(self, task: Task, said: str) -> Any:
        """How right `said` is: a number from 0 to 1, or a pair (hard 0 or 1, soft 0 to 1)."""
        ...


@dataclass(frozen=True)
class TaskSet:
    """Tasks by split, each in its order, how an answer is scored, the hash of which task is in which split, and the
    hash of the user's class with what it imports of the project (None without one)."""

    splits: Mapping[Split, tuple[Task, ...]]
    score: Scorer
    sha256: str
    code: str | None = None

    def __getitem__(self, split: Split) -> tuple[Task, ...]:
        return self.splits[split]


def load(params: TaskParams, folder: Path = FOLDER) -> TaskSet:
    """The task set that `params` name. Raises InputError naming the file, the line and what is wrong."""
    scorer, code = score, None
    if params.source is Source.PACKAGE:
        where, values = f"{params.package} tasks", facts.tasks(params.package)
        facts.check_manifest(params.package, values, folder)
    elif params.source is Source.FILE:
        path = inside(Path(params.file), folder)
        where, values = str(path), read_objects(path, DO)
    else:
        where = params.python
        own, path = _user_class(params.python, folder)
        code = closure_digest([path], folder.resolve().parent)
        values = called(f"{where}: tasks()", lambda: [dict(each) for each in own.tasks()])
        scorer = _own_scorer(own, where)
    tasks, given = parse(values, where)
    splits = _given_splits(tasks, given) if given else hash_splits(tasks, params)
    for split, found in splits.items():
        if not found:
            raise InputError(where, f"the {split} split is empty ({len(tasks)} tasks in all)", "add tasks to it")
    labelled = {str(split): [asdict(task) for task in found] for split, found in splits.items()}
    return TaskSet(splits, scorer, digest(labelled), code)


def inside(path: Path, folder: Path = FOLDER) -> Path:
    """`path`, a file below `folder`. Raises InputError when it is missing or elsewhere (DVC would not see a change)."""
    if not path.resolve().is_relative_to(folder.resolve()):
        raise InputError(path, f"does not lie below {folder}/, which the stage depends on", f"move it to {folder}/")
    if not path.is_file():
        raise InputError(path, "no such file", f"put it below {folder}/; {DO}")
    return path


def parse(values: Sequence[Mapping[str, Any]], where: str) -> tuple[list[Task], dict[str, Split]]:
    """The tasks, and the split of each id where the values name one.

    Raises InputError for a missing or unknown key, an id that is not safe as a file's name or stands twice, answers
    that are no texts, and splits given for some tasks only.
    """
    tasks: dict[str, Task] = {}
    given: dict[str, Split] = {}
    for number, value in enumerate(values, 1):
        at = f"{where}: task {number}"
        task = _task(value, at)
        if task.id in tasks:
            raise InputError(at, f"id {task.id!r} stands twice", "make ids unique")
        if "split" in value:
            given[task.id] = _split(value["split"], at)
        tasks[task.id] = task
    if given and len(given) < len(tasks):
        raise InputError(where, f"{len(given)} of {len(tasks)} tasks name a split", "name it for all or for none")
    return list(tasks.values()), given


def _task(value: Mapping[str, Any], at: str) -> Task:
    if strange := set(value) - {"id", "question", "answers", "split"}:
        raise InputError(at, f"unknown key {min(strange)!r}", f"the keys are id, question, answers, split; {DO}")
    name, question, answers = value.get("id"), value.get("question"), value.get("answers")
    if not isinstance(name, str) or not ID.fullmatch(name):
        raise InputError(at, f"id {name!r} is not safe", "use letters, digits, '.', '_' and '-', a letter first")
    if not isinstance(question, str) or not question.strip():
        raise InputError(at, f"question is {question!r}", "write a text that is not empty")
    wrong = not isinstance(answers, list | tuple) or not answers
    if wrong or not all(isinstance(each, str) and each.strip() for each in cast("list[Any]", answers)):
        raise InputError(at, f"answers is {answers!r}", 'write a list of texts, such as ["Paris"]')
    return Task(name, question, tuple(cast("list[str]", answers)))


def _split(value: Any, at: str) -> Split:
    try:
        return Split(value)
    except ValueError:
        raise InputError(at, f"split is {value!r}", "write train, val or test") from None


def _given_splits(tasks: Sequence[Task], given: Mapping[str, Split]) -> dict[Split, tuple[Task, ...]]:
    """The splits as named, each by id. Raises InputError when a question stands in two."""
    seen: dict[str, Task] = {}
    for task in tasks:
        other = seen.setdefault(normalise(task.question), task)
        if given[other.id] is not given[task.id]:
            what = f"{other.id!r} in {given[other.id]} and {task.id!r} in {given[task.id]} ask the same"
            raise InputError("tasks", what, "keep one of them: what is trained on must not be tested")
    return {split: _by_id(task for task in tasks if given[task.id] is split) for split in Split}


def _by_id(tasks: Iterable[Task]) -> tuple[Task, ...]:
    """In an order that the lines of a file do not decide."""
    return tuple(sorted(tasks, key=lambda task: task.id))


def hash_splits(tasks: Sequence[Task], params: TaskParams) -> dict[Split, tuple[Task, ...]]:
    """Test, then validation, then training tasks in the order of the hash of their question.

    Tasks that ask the same stay together. Raises InputError when nothing is left to train on.
    """
    if len(tasks) <= params.val_size + params.test_size:
        what = f"{len(tasks)} tasks are not more than val_size {params.val_size} + test_size {params.test_size}"
        raise InputError("skill.tasks", what, "lower them, or add tasks")
    groups: dict[str, list[Task]] = {}
    for task in tasks:
        groups.setdefault(_question_hash(task, params.split_seed), []).append(task)
    found: dict[Split, list[Task]] = {split: [] for split in Split}
    for name in sorted(groups):
        room = ((Split.TEST, params.test_size), (Split.VAL, params.val_size))
        split = next((split for split, size in room if len(found[split]) < size), Split.TRAIN)
        found[split] += _by_id(groups[name])
    return {split: tuple(each) for split, each in found.items()}


def _question_hash(task: Task, seed: int) -> str:
    return hashlib.sha256(f"{seed}\n{normalise(task.question)}".encode()).hexdigest()


def _user_class(name: str, folder: Path) -> tuple[TaskClass, Path]:
    """An instance of FILE:CLASS, and its file. Raises InputError when it cannot be had or lacks a method."""
    file, _, class_name = name.rpartition(":")
    if not file:
        raise InputError("skill.tasks.python", f"{name!r} is not FILE:CLASS", "write skills/my_tasks.py:Tasks")
    path = inside(Path(file), folder)
    module = load_file(path, f"ratchet_tasks_{path.stem}", "skill.tasks.python")
    found = getattr(module, class_name, None)
    if found is None:
        raise InputError(path, f"has no class {class_name!r}", DO)
    missing = [method for method in ("tasks", "score") if not callable(getattr(found, method, None))]
    if missing:
        raise InputError(path, f"{class_name} lacks the method {missing[0]}()", DO)
    return called(f"{name}: {class_name}()", found), path


def _own_scorer(own: TaskClass, where: str) -> Scorer:
    def scored(task: Task, said: str) -> Row:
        given = called(f"{where}: score() of {task.id}", own.score, task, said)
        hard, soft = given if isinstance(given, tuple) and len(given) == 2 else (int(given == 1), given)
        if hard not in (0, 1) or not isinstance(soft, int | float) or not 0 <= soft <= 1:
            raise InputError(where, f"score() gave {given!r} for {task.id}", "give 0 to 1, or (0 or 1, 0 to 1)")
        plain = score(task, said)
        return Row(task.id, task.question, task.answers, said, int(hard), float(soft), plain.contains,
                   "" if hard else plain.fail_reason or f"scored {soft:g}")  # fmt: skip

    return scored
