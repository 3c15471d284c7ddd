"""The command proposer with fake agents: real processes in the real sandbox, only the arena comes out."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from made_question import ARENA, Past
from ratchet.core.errors import InputError
from ratchet.loops.research.program import parse_program
from ratchet.loops.research.proposers.command import Command, CommandParams, words
from ratchet.loops.research.records import Cost, Failure, NoProposal, Proposal, Question
from ratchet.sandbox.job import Job, Running
from ratchet.sandbox.process import ProcessSandbox
from ratchet.settings import settings

EDIT = """
import os, pathlib, sys
arena = pathlib.Path(sys.argv[1])
arena.write_text(arena.read_text().replace("= 0.1", "= 0.2"))
pathlib.Path("description.txt").write_text("twice\\tthe rate\\n")
"""


@pytest.fixture(autouse=True)
def fresh_settings() -> Iterator[None]:
    settings.cache_clear()
    yield
    settings.cache_clear()


def command(tmp_path: Path, script: str, arguments: str = "{arena}", **params: Any) -> Command:
    """A proposer whose agent is a Python script."""
    agent = tmp_path / "an agent.py"
    agent.write_text(script)
    template = f"{shlex.quote(sys.executable)} {shlex.quote(str(agent))} {arguments}"
    return Command(CommandParams(template=template, seconds=30, memory_mb=512, **params))


def some_question(tmp_path: Path, **more: Any) -> Question:
    past = Past().with_baseline()
    past.knobs(1.9, WIDTH=9)
    (tmp_path / "storage").mkdir(exist_ok=True)
    return past.question(tmp_path / "storage", **more)


def propose(tmp_path: Path, script: str, **more: Any) -> Proposal:
    return command(tmp_path, script, **more).propose(some_question(tmp_path))


def test_command_arena_that_it_edited_is_the_proposal(tmp_path: Path) -> None:
    proposal = propose(tmp_path, EDIT, money_per_call=0.25)
    assert proposal == Proposal(ARENA.replace("= 0.1", "= 0.2"), "twice the rate", "command", Cost(calls=1, money=0.25))
    left = sorted(path.suffix for path in (tmp_path / "storage").iterdir())
    assert left == [".json", ".log"]


def test_command_finds_brief_notes_and_question_in_its_folder(tmp_path: Path) -> None:
    script = f"""
import pathlib, sys
pathlib.Path({str(tmp_path)!r}, "seen").write_text("\\n".join(pathlib.Path(name).read_text() for name in sys.argv[1:]))
"""
    program = parse_program("---\nobjective: {max: {params_m: 3}}\n---\nПопробуй альтернативы RoPE.\n")
    proposer = command(tmp_path, script, "{prompt_file} {program} {notes} {arena}")
    with pytest.raises(NoProposal, match="changes nothing that runs"):
        proposer.propose(some_question(tmp_path, program=program, curve=((0, 9.0), (5, 8.0))))
    seen = (tmp_path / "seen").read_text()
    for part in ("Make one experiment", "Попробуй альтернативы RoPE.", "params_m above 3", "| #1 ", "5: 8.0000", ARENA):
        assert part in seen


def test_command_asked_again_after_a_kill_does_not_run_twice(tmp_path: Path) -> None:
    script = EDIT + f"\nopen({str(tmp_path / 'ran')!r}, 'a').write('x')\n"
    first = propose(tmp_path, script)
    assert propose(tmp_path, script) == first
    assert (tmp_path / "ran").read_text() == "x"


def test_command_killed_half_way_starts_from_a_clean_folder(tmp_path: Path) -> None:
    class Killed(KeyboardInterrupt):
        pass

    class Killing(ProcessSandbox):
        def start(self, job: Job) -> Running:
            (job.folder / "half").write_text("done")
            raise Killed

    proposer = command(tmp_path, EDIT)
    proposer._sandbox = Killing()
    with pytest.raises(Killed):
        proposer.propose(some_question(tmp_path))
    assert propose(tmp_path, EDIT).description == "twice the rate"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("pass", "changes nothing that runs"),
        ("import sys; print('no idea'); sys.exit(3)", "the command ended with exit code 3: no idea"),
        (EDIT + "arena.write_text('x = (')", "the edited file is no Python"),
        (EDIT + "arena.unlink()", "train.py is gone"),
        (EDIT + "arena.unlink(); arena.symlink_to('/etc/hostname')", "train.py is no plain file any more"),
        (EDIT + "arena.write_bytes(b'x = \"\\xff\"')", "train.py is not UTF-8"),
        (EDIT + "arena.write_text('x = 1\\n' * 200_000)", "train.py has 1200000 bytes"),
        (EDIT + "open('arena/program.md', 'a').write('obey')", "it changed arena/program.md; only arena/train.py"),
        (EDIT + "os.remove('notes.md'); open('extra.py', 'w').close()", "it changed extra.py, notes.md"),
        (EDIT + "os.remove('question.md'); os.symlink('/etc/passwd', 'question.md')", "it changed question.md"),
    ],
)
def test_command_that_leaves_anything_but_an_edited_arena_gives_no_proposal(
    tmp_path: Path, script: str, said: str
) -> None:
    for _ in range(2):  # the second time from its record
        with pytest.raises(NoProposal) as caught:
            propose(tmp_path, script, money_per_call=0.5)
        assert said in caught.value.what
        assert caught.value.cost == Cost(calls=1, money=0.5)


def test_command_caches_under_dotted_names_are_nobodys_business(tmp_path: Path) -> None:
    script = EDIT + "os.makedirs('.agent/log'); open('.agent/log/1', 'w').close(); os.mkdir('empty')"
    assert propose(tmp_path, script).description == "twice the rate"


def test_command_over_its_time_is_ended_with_all_it_started(tmp_path: Path) -> None:
    proposer = command(tmp_path, "import time; time.sleep(60)")
    proposer.params = proposer.params.model_copy(update={"seconds": 0.5})
    with pytest.raises(NoProposal, match="the command timed out"):
        proposer.propose(some_question(tmp_path))


def test_command_after_a_crash_finds_what_crashed_and_why(tmp_path: Path) -> None:
    crashed = ARENA.replace("WIDTH * RATE", "WIDTH / 0")
    script = """
import pathlib
arena, asked = pathlib.Path("arena/train.py"), pathlib.Path("question.md").read_text()
assert "It failed: division by zero" in asked and "| ZeroDivisionError" in asked
arena.write_text(arena.read_text().replace("WIDTH / 0", "WIDTH / 2"))
"""
    failure = Failure(crashed, "division by zero", ("ZeroDivisionError",))
    proposal = command(tmp_path, script).propose(some_question(tmp_path, failure=failure))
    assert (proposal.source, proposal.description) == (crashed.replace("/ 0", "/ 2"), "no description given")


ENVIRONMENT = EDIT + "print({name: value for name, value in os.environ.items() if 'planted' in value}); sys.exit(1)"


def test_command_gets_the_keys_that_params_name_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONE_API_KEY", "planted-one-0123456789")
    monkeypatch.setenv("OTHER_API_KEY", "planted-other-0123456789")
    with pytest.raises(NoProposal) as caught:
        propose(tmp_path, ENVIRONMENT, key_variables=["ONE_API_KEY"])
    assert "ONE_API_KEY" in caught.value.what
    assert "OTHER_API_KEY" not in caught.value.what
    written = "".join(path.read_text() for path in (tmp_path / "storage").rglob("*") if path.is_file())
    assert "planted-one" not in written  # not even when the agent prints it
    assert "planted-one" not in caught.value.what


def test_command_key_written_into_the_arena_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONE_API_KEY", "planted-one-0123456789")
    with pytest.raises(NoProposal, match="it wrote a key into the arena"):
        propose(tmp_path, EDIT + "arena.write_text(f'x = {dict(os.environ)}')", key_variables=["ONE_API_KEY"])
    assert "planted" not in "".join(path.read_text() for path in (tmp_path / "storage").iterdir())


def test_command_key_that_is_not_set_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="NO_SUCH_KEY is not set"):
        propose(tmp_path, EDIT, key_variables=["NO_SUCH_KEY"])


def test_command_without_network_runs_in_the_sessions_sandbox(tmp_path: Path) -> None:
    started: list[Job] = []

    class Watching(ProcessSandbox):
        def start(self, job: Job) -> Any:
            started.append(job)
            return super().start(job)

    given = command(tmp_path, EDIT).params.model_copy(update={"network": False})
    Command(given, Watching()).propose(some_question(tmp_path))
    assert [job.writes for job in started] == [(started[0].folder,)]
    with pytest.raises(InputError, match="there is no sandbox"):
        Command(given)


def test_command_words_are_split_before_they_are_filled_in() -> None:
    assert words("do 'what {prompt_file} says' --in={arena}", {"prompt_file": "a b", "arena": "c"}) == [
        "do", "what a b says", "--in=c",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "params",
    [{"template": "'open"}, {"template": " "}, {"template": "x {arenas}"}, {"network": False, "key_variables": ["K"]}],
)
def test_command_params_that_cannot_work_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        CommandParams(**params)


def test_command_without_a_template_says_where_to_find_one() -> None:
    with pytest.raises(InputError, match=r"see docs/proposers\.md"):
        Command(CommandParams())
