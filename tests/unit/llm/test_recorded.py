"""The record of calls: on the disk before it is used, read back after a kill, and enough for a replay."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ratchet.core.errors import InputError
from ratchet.llm.client import BudgetSpent, CallError, Finish, Message, Reply, Request, Role, Spent, Trouble, charge
from ratchet.llm.recorded import Mode, Recorded
from ratchet.llm.scripted import Scripted


def request(text: str = "hello", **more: Any) -> Request:
    return Request(model="m", max_tokens=5, messages=(Message(Role.USER, text),), **more)


def echo(request: Request) -> Reply:
    return Reply(text=f"re: {request.text()}", finish=Finish.LENGTH, prompt_tokens=3, spent=Spent(1, 7, 0.25))


def test_record_answers_the_same_request_without_asking(tmp_path: Path) -> None:
    scripted = Scripted(echo)
    first = Recorded(tmp_path / "llm.jsonl", scripted).complete(request())
    again = Recorded(tmp_path / "llm.jsonl", scripted)
    assert again.complete(request()) == first == echo(request())
    assert (len(scripted.asked), again.spent) == (1, Spent(1, 7, 0.25))


@pytest.mark.parametrize(
    "other",
    [
        {"model": "n"}, {"max_tokens": 6}, {"temperature": 0.0}, {"top_p": 0.5}, {"seed": 0}, {"stop": ("x",)},
        {"sample": 1},
        {"extra": {"a": 1}}, {"messages": (Message(Role.SYSTEM, "hello"),)}, {"messages": (), "prompt": "hello"},
    ],
)  # fmt: skip
def test_record_key_covers_every_field_of_a_request(other: dict[str, Any]) -> None:
    assert dataclasses.replace(request(), **other).key() != request().key()


def test_record_key_does_not_change_between_versions() -> None:
    assert request().key() == "438f8f175a42c9f6449950d3ae986ee92a6b264cbe9b68d0c6e59bda5a4345d5"


def test_record_is_on_the_disk_before_the_answer_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    recorded = Recorded(tmp_path / "llm.jsonl", Scripted(echo))
    recorded.complete(request())
    assert synced == [str(tmp_path / "llm.jsonl"), str(tmp_path)]
    assert json.loads((tmp_path / "llm.jsonl").read_text())["reply"]["text"] == "re: hello"


def test_record_replay_needs_no_provider_and_refuses_what_is_new(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path / "llm.jsonl", Scripted(echo))
    recorded.complete(request("Look for compact models. " * 5 + "Now."))
    recorded.complete(request("Something else entirely", seed=4))
    replay = Recorded(tmp_path / "llm.jsonl", mode=Mode.REPLAY)
    assert replay.complete(request("Something else entirely", seed=4)).text == "re: Something else entirely"
    with pytest.raises(InputError) as caught:
        replay.complete(request("Look for compact models. " * 5 + "Then."))
    said = str(caught.value)
    assert "holds no answer to this request: the nearest differs in messages (from character 131: 'Then.'" in said
    assert "recorded 'Now.')" in said
    with pytest.raises(InputError, match=r"the nearest differs in seed \(5, recorded 4\)"):
        replay.complete(request("Something else entirely", seed=5))


def test_record_replay_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such record"):
        Recorded(tmp_path / "llm.jsonl", mode=Mode.REPLAY)


def test_record_torn_within_its_last_line_is_mended(tmp_path: Path) -> None:
    path = tmp_path / "llm.jsonl"
    recorded = Recorded(path, Scripted(echo))
    recorded.complete(request("one"))
    whole = path.read_bytes()
    recorded.complete(request("two"))
    both = path.read_bytes()
    for end in range(len(whole), len(both), 9):
        path.write_bytes(both[:end])
        scripted = Scripted(echo)
        again = Recorded(path, scripted)
        assert again.complete(request("one")).text == "re: one"
        assert again.complete(request("two")).text == "re: two"
        assert len(scripted.asked) == 1
        assert path.read_bytes() == both


def test_record_torn_by_a_line_longer_than_the_next_is_mended(tmp_path: Path) -> None:
    path = tmp_path / "llm.jsonl"
    Recorded(path, Scripted(echo)).complete(request("one"))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"key": "' + b"x" * 5000)
    Recorded(path, Scripted(echo)).complete(request("two"))
    assert path.read_bytes().startswith(whole)
    assert path.read_bytes().count(b"\n") == 2
    assert b"xxx" not in path.read_bytes()


@pytest.mark.parametrize("damage", ["nonsense", "{}", "swap"])
def test_record_damaged_inside_is_refused_with_its_line(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "llm.jsonl"
    recorded = Recorded(path, Scripted(echo))
    for text in ("one", "two", "three"):
        recorded.complete(request(text))
    lines = path.read_text().splitlines()
    lines[1] = lines[1].replace("two", "owt") if damage == "swap" else damage
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match=r"llm.jsonl:2: is no line of a record"):
        Recorded(path, Scripted(echo))


def test_record_failure_is_not_an_answer_but_what_it_cost_is_kept(tmp_path: Path) -> None:
    refused = CallError("there", Trouble.REFUSED, "no", "rephrase", spent=Spent(2, 9, 0.5))
    recorded = Recorded(tmp_path / "llm.jsonl", Scripted([refused, "fine"]))
    with pytest.raises(CallError):
        recorded.complete(request())
    assert Recorded(tmp_path / "llm.jsonl", Scripted([])).spent == Spent(2, 9, 0.5)
    assert recorded.complete(request()).text == "fine"


def test_record_threads_that_ask_the_same_pay_once(tmp_path: Path) -> None:
    begun = threading.Event()

    def slow(request: Request) -> Reply:
        begun.set()
        time.sleep(0.1)
        return echo(request)

    scripted = Scripted(slow)
    recorded = Recorded(tmp_path / "llm.jsonl", scripted)
    with ThreadPoolExecutor(8) as pool:
        texts = [reply.text for reply in pool.map(lambda _: recorded.complete(request()), range(8))]
    assert texts == ["re: hello"] * 8
    assert len(scripted.asked) == 1


@pytest.mark.parametrize("error", [BudgetSpent("budget", "used up", "stop"), KeyboardInterrupt()])
def test_record_has_what_a_call_without_an_answer_cost_before_those_who_wait_are_told(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, waits = threading.Event(), threading.Event()

    def fails(request: Request) -> Reply:
        asked.set()
        assert waits.wait(10)
        charge(error, Spent(1, 9, 0.5))
        raise error

    recorded = Recorded(tmp_path / "llm.jsonl", Scripted(fails))
    append = recorded._append

    def slowly(line: Any) -> None:
        time.sleep(0.2)
        append(line)

    def wait() -> Spent:
        assert asked.wait(10)
        waits.set()  # the same request is under way: this one joins it
        with pytest.raises(type(error)):
            recorded.complete(request())
        return recorded.spent

    monkeypatch.setattr(recorded, "_append", slowly)
    with ThreadPoolExecutor(1) as pool:
        seen = pool.submit(wait)
        with pytest.raises(type(error)):
            recorded.complete(request())
        assert seen.result(10) == Spent(1, 9, 0.5)
    assert Recorded(tmp_path / "llm.jsonl", Scripted([])).spent == Spent(1, 9, 0.5)


def test_record_published_is_the_same_whatever_thread_was_first(tmp_path: Path) -> None:
    published: list[bytes] = []
    for turn, order in enumerate((range(40), reversed(range(40)))):
        recorded = Recorded(tmp_path / f"{turn}.jsonl", Scripted(echo))
        with ThreadPoolExecutor(8) as pool:
            replies = list(pool.map(lambda n, r=recorded: (n, r.complete(request(f"{n}")).text), order))
        assert all(text == f"re: {n}" for n, text in replies)
        recorded.publish(tmp_path / "published.jsonl")
        published.append((tmp_path / "published.jsonl").read_bytes())
    assert published[0] == published[1]
    replay = Recorded(tmp_path / "published.jsonl", mode=Mode.REPLAY)
    assert replay.complete(request("17")).text == "re: 17"


KILLED = """
import sys, os, signal
from pathlib import Path
from ratchet.llm.client import Request, Reply
from ratchet.llm.recorded import Recorded
from ratchet.llm.scripted import Scripted

def answer(request):
    print("paid", request.prompt, flush=True)
    return Reply(text=request.prompt)

recorded = Recorded(Path(sys.argv[1]), Scripted(answer))
for number in range(6):
    recorded.complete(Request(model="m", max_tokens=1, prompt=str(number)))
    if len(sys.argv) > 2 and number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_record_after_a_kill_pays_for_nothing_twice(tmp_path: Path) -> None:
    def run(*more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", KILLED, str(tmp_path / "llm.jsonl"), *more]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    killed, done = run("kill"), run()
    assert killed.returncode == -signal.SIGKILL
    assert killed.stdout.replace("paid ", "") == "0\n1\n2\n3\n"
    assert done.stdout.replace("paid ", "") == "4\n5\n", done.stderr
