"""A skill to be learnt in seconds: numbers whose secret word depends on their last digit, and an agent that knows the
word only when the document has the digit's rule. Agent and optimizer are one function of a request, so that it can
answer over HTTP or in this process, and nothing depends on the order of the requests.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ratchet.core.rundir import RunDirectory
from ratchet.llm.client import Provider
from ratchet.llm.client import Request as Call
from ratchet.llm.endpoint import open_client
from ratchet.llm.scripted import Scripted
from ratchet.loops.skill import session
from ratchet.loops.skill.models import ModelTarget
from ratchet.loops.skill.parameters import SkillParams
from ratchet.loops.skill.publish import Published, gather
from ratchet.loops.skill.session import Ending, Players, Request
from ratchet.params import merge
from ratchet.settings import Settings

WORDS = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen", "ibis", "jay")
TASKS = 70

TOY: dict[str, Any] = {
    "tasks": {"source": "file", "file": "skills/toy.jsonl", "val_size": 20, "test_size": 20},
    "target": {"model": "agent", "base_url": "http://127.0.0.1:9/v1"},
    "optimizer": {"model": "optimizer", "base_url": "http://127.0.0.1:9/v1"},
    "num_epochs": 2,
    "batch_size": 10,
    "minibatch_size": 4,
    "merge_batch_size": 2,
    "workers": 2,
    "gate": "strict",
}


def make_project(folder: Path) -> Path:
    """Write the toy's task set to `folder`/skills."""
    lines = [
        {"id": f"n-{n}", "question": f"Which word belongs to {n}?", "answers": [WORDS[n % 10]]} for n in range(TASKS)
    ]
    (folder / "skills").mkdir(parents=True, exist_ok=True)
    (folder / "skills/toy.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def params(**over: Any) -> SkillParams:
    """The toy's parameters with `over` laid on them."""
    return SkillParams.model_validate(merge(TOY, over))


def request(project: Path, **over: Any) -> Request:
    """What is to be trained."""
    made = params(**over)
    if made.tasks.file.startswith("skills/"):
        file = str(project / made.tasks.file)
        made = made.model_copy(update={"tasks": made.tasks.model_copy(update={"file": file})})
    return session.read_request(made, project / "skills")


def respond(model: str, messages: list[Mapping[str, Any]]) -> str:
    """What `model` says to `messages`: a function of them alone."""
    said = messages[-1]["content"]
    if model == "agent":
        document = messages[0]["content"] if len(messages) > 1 else ""
        return agent(document, said)
    return json.dumps(optimizer(said))


def agent(document: str, question: str) -> str:
    """The word, when the document has the rule of the last digit; else a wrong one."""
    digit = int(re.findall(r"\d+", question)[-1]) % 10
    rules = dict(re.findall(r"^(\d) means (\w+)$", document, re.MULTILINE))
    return rules.get(str(digit), "unknown")


def optimizer(said: str) -> dict[str, Any]:
    """Rules for the digits it sees wrong; some of its edits have no match or teach a wrong word."""
    if '"ranking"' in said:
        count = said.count('"place":')
        wanted = int(re.search(r"Only (\d+) of these", said).group(1))  # type: ignore[union-attr]
        places = list(range(count))
        random.Random(said).shuffle(places)
        return {"ranking": places[:wanted]}
    if '"lessons"' in said:
        return {"lessons": f"lesson {len(said)}"}
    if '"guidance"' in said:
        return {"guidance": "keep what works"}
    if '"document"' in said:
        wanted = re.findall(r"(\d means \w+)", said)
        return {"document": "\n".join(dict.fromkeys(wanted))}
    if "The lists:" in said:
        found = re.findall(r'"content": "(\d means \w+)"', said)
        return {"edits": [_rule(text, found.count(text)) for text in dict.fromkeys(found)]}
    edits = []
    for number, answers in re.findall(r"belongs to (\d+)\?\", \"said\": \"unknown\", \"answers\": \[\"(\w+)\"", said):
        edits.append(_rule(f"{int(number) % 10} means {answers}", 1))
    unique = {edit["content"]: edit for edit in edits}
    return {"edits": [*unique.values()][:3]}


def _rule(text: str, support: int) -> dict[str, Any]:
    return {"op": "append", "target": "", "content": text, "reason": "seen wrong", "support": support}


def scripted(call: Call) -> str:
    """`respond` to a request in this process."""
    fields = call.fields()
    return respond(fields["model"], fields["messages"])


def players(made: Request, folder: Path, target: Provider, optimizer_: Provider) -> Players:
    """Agent and optimizer behind these providers, recorded below `folder` as the stage does it."""
    record = open_client(made.params.target, folder / "target.jsonl", provider=target)
    agent_ = ModelTarget(record, made.params.target, made.params.workers)
    who, other = session.recorded_optimizer(made.params, folder / "optimizer.jsonl", optimizer_)
    return Players(agent_, who, {"target": record, "optimizer": other})


def settings(where: Path) -> Settings:
    """Run directories below `where`."""
    return Settings(runs=where / "runs", threads=1)


def run(
    made: Request, where: Path, target: Provider | None = None, optimizer_: Provider | None = None,
    here: Settings | None = None,
) -> tuple[Ending, Published]:  # fmt: skip
    """One process' life: open the run, drive it as far as it goes, test when it is finished."""
    with session.open_session(made, here or settings(where)) as opened:
        who = players(made, opened.path, target or Scripted(scripted), optimizer_ or Scripted(scripted))
        return finish(made, who, opened)


def finish(made: Request, who: Players, opened: RunDirectory) -> tuple[Ending, Published]:
    """Drive an open run and gather what it came to."""
    ending = session.train(made, who, opened, say=lambda line: None)
    tested = session.look_at_test(made, who, ending.state.best.text) if ending.finished else None
    paid = {name: record.spent.calls for name, record in who.records.items()}
    return ending, gather(made, opened, ending, tested, paid)


def results(published: Published) -> str:
    """All that must not depend on interruptions and threads, as one text."""
    history = [{k: v for k, v in row.items() if k not in ("timing", "wall_time_s")} for row in published.history]
    summary = {k: v for k, v in published.summary.items() if k not in ("seconds", "params")}
    edits = [row["edits"] for row in published.rows]
    return json.dumps([published.state.public(), history, summary, published.metrics, edits], indent=1, sort_keys=True)


def copy_run(where: Path, to: Path) -> Path:
    """A copy of the run directories below `where`."""
    shutil.copytree(where, to)
    return to
