"""The embedded agent: the real model, many questions at once, the document read once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ratchet.loops.skill.builtin import BuiltinOptimizer, example
from ratchet.loops.skill.local import LocalTarget, prefix_text, question_text
from ratchet.loops.skill.parameters import TaskParams
from ratchet.loops.skill.records import Kind, Memory, Split, Task
from ratchet.loops.skill.rollout import rollout
from ratchet.loops.skill.scoring import score
from ratchet.loops.skill.tasks import TaskSet, load
from ratchet.loops.skill.update import apply

ROOT = Path(__file__).resolve().parents[4]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def target() -> LocalTarget:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    made = LocalTarget(ROOT / ".ratchet/downloads", batch_items=4, max_new_tokens=6)
    torch.set_num_threads(threads)
    return made


@pytest.fixture(scope="module")
def elements() -> TaskSet:
    return load(TaskParams.model_validate({}), ROOT / "skills")


def document(elements: TaskSet) -> str:
    return "\n".join(example(score(task, "")) for task in elements[Split.TRAIN][:4])


def test_local_agent_says_the_same_alone_in_a_batch_and_through_generate(
    target: LocalTarget, elements: TaskSet
) -> None:
    skill, tasks = document(elements), elements[Split.VAL][:5]
    together = [answer.text for answer in target.answer(skill, tasks, 0)]
    alone = [target.answer(skill, [task], 0)[0].text for task in tasks]
    assert together == alone
    ids = target.tokenizer.encode(
        "<|endoftext|>" + prefix_text(skill) + question_text(tasks[0]), add_special_tokens=False
    )
    said = target.model.generate(torch.tensor([ids]), max_new_tokens=6, do_sample=False)[0][len(ids) :]
    assert target.tokenizer.decode(said, skip_special_tokens=True).split("\n")[0].strip() == together[0]


def test_local_agent_reads_the_document_once_for_all_questions(
    target: LocalTarget, elements: TaskSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    skill, seen = document(elements) + "\nBe brief.", list[int]()
    forward = target.model.forward

    def counted(*args: object, **named: torch.Tensor) -> object:
        seen.append(named["input_ids"].shape[1])
        return forward(*args, **named)

    monkeypatch.setattr(target.model, "forward", counted)
    answers = target.answer(skill, elements[Split.VAL][:6], 0)
    prefix = len(target.tokenizer.encode(prefix_text(skill), add_special_tokens=False)) + 1
    assert seen.count(prefix) == 1
    assert all(length < prefix for length in seen if length != prefix)
    assert answers[0].usage.prompt_tokens > prefix


def test_builtin_optimizer_makes_the_local_agent_better(target: LocalTarget, elements: TaskSet) -> None:
    train, val = elements[Split.TRAIN][:8], elements[Split.VAL][:8]
    before = rollout("", train, target, score)
    patch = BuiltinOptimizer().reflect(Memory("", edit_budget=6), Kind.FAILURE, before.rows).value
    candidate, _ = apply("", patch.edits)
    after = rollout(candidate, val, target, score)
    assert rollout("", val, target, score).scores.hard == 0
    assert after.scores.hard >= 0.375


def test_local_agent_takes_a_document_of_any_letters(target: LocalTarget) -> None:
    task = Task("a", "Wie heißt 東京?", ("Tokio",))
    assert len(target.answer("Regel: Antworte knapp. 規則 ✓", [task], 0)) == 1
