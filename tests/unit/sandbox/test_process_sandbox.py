"""The process sandbox: how jobs end is told apart, limits hold, and nothing is left, whoever is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from jobs import CASES, FORK_BOMB, FORK_BOMB_IN_SESSIONS, LIMITS, job_of, living_with, script_job, until
from ratchet.core.errors import InputError
from ratchet.sandbox.job import End, Ended, Job
from ratchet.sandbox.process import ProcessSandbox


def run(job: Job) -> Ended:
    with ProcessSandbox().start(job) as running:
        return running.wait()


@pytest.mark.parametrize("name", CASES)
def test_process_each_end_is_told_apart(name: str, folder: Path) -> None:
    case = CASES[name]
    ended = run(job_of(case, folder))
    assert (ended.end, ended.exit_code) == (case.end, case.code), ended
    assert case.said in "\n".join((ended.detail, *ended.last))
    assert 0 < ended.seconds < 30


@pytest.mark.parametrize("script", [FORK_BOMB, FORK_BOMB_IN_SESSIONS], ids=["plain", "in sessions"])
def test_process_fork_bomb_is_ended_and_leaves_nothing(script: str, folder: Path) -> None:
    mark = uuid.uuid4().hex
    ended = run(script_job(folder, script, mark))
    assert (ended.end, ended.detail) == (End.CRASHED, "more than 40 processes")
    assert living_with(mark) == []


def test_process_log_is_cut_at_its_limit_to_the_byte(folder: Path) -> None:
    job = job_of(CASES["log_bomb"], folder)
    run(job)
    assert job.log.stat().st_size == 1 << 20


def test_process_output_of_exactly_the_limit_is_allowed(folder: Path) -> None:
    job = script_job(folder, "import sys; sys.stdout.write('x' * (1 << 20))")
    assert run(job).end is End.DONE
    assert job.log.stat().st_size == 1 << 20


def test_process_last_lines_cannot_steer_a_terminal(folder: Path) -> None:
    script = r"print('\x1b[31mred\x1b]0;title\x07 \x00end\x9b5m'); print('a\rb'); print()"
    assert run(script_job(folder, script)).last == ("red  end 5m", "a", "b")


def test_process_memory_that_children_share_counts_once(folder: Path) -> None:
    script = """
        import os, time
        data = b"x" * (120 << 20)
        for _ in range(3):
            if os.fork() == 0:
                time.sleep(1.5); os._exit(0)
        time.sleep(1.5)
    """
    assert run(script_job(folder, textwrap.dedent(script))).end is End.DONE


def test_process_stop_lets_a_job_save_and_takes_its_exit_code(folder: Path) -> None:
    script = """
        import signal, sys, time
        def save(*_):
            print("saved"); sys.exit(143)
        signal.signal(signal.SIGTERM, save)
        print("ready", flush=True)
        time.sleep(60)
    """
    job = script_job(folder, textwrap.dedent(script))
    with ProcessSandbox().start(job) as running:
        until(lambda: "ready\n" in job.log.read_text())
        assert running.poll() is None
        ended = running.stop(20)
        assert running.poll() == running.wait() == running.stop() == ended
    assert (ended.end, ended.exit_code, ended.last) == (End.STOPPED, 143, ("ready", "saved"))


def test_process_stop_kills_what_does_not_listen_after_its_grace(folder: Path) -> None:
    job = script_job(
        folder, "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    )
    with ProcessSandbox().start(job) as running:
        until(lambda: job.log.read_text())
        ended = running.stop(0.3)
    assert (ended.end, ended.exit_code) == (End.STOPPED, 137)


FAMILY = """
import subprocess, sys, time
for session in (False, True):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", sys.argv[1]], start_new_session=session)
twice = (
    "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)', sys.argv[1]],"
    " start_new_session=True)"
)
subprocess.run([sys.executable, "-c", twice, sys.argv[1]])
print("ready", flush=True)
time.sleep(float(sys.argv[2]))
"""
"""Starts a child, one in a session of its own, and an orphan in a session of its own."""


def test_process_descendants_end_with_the_job_whatever_session_they_made(folder: Path) -> None:
    mark = uuid.uuid4().hex
    ended = run(script_job(folder, FAMILY, mark, "0"))
    assert (ended.end, ended.last) == (End.DONE, ("ready",))
    assert living_with(mark) == []


def test_process_leaving_the_with_by_an_error_ends_all(folder: Path) -> None:
    mark = uuid.uuid4().hex
    job = script_job(folder, FAMILY, mark, "60")

    def body() -> None:
        with ProcessSandbox().start(job):
            until(lambda: "ready\n" in job.log.read_text())
            assert len(living_with(mark)) == 4
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        body()
    assert living_with(mark) == []


OWNER = """
import sys, time
from pathlib import Path
from jobs import script_job
from ratchet.sandbox.process import ProcessSandbox
running = ProcessSandbox().start(script_job(Path(sys.argv[1]), sys.argv[2], sys.argv[3], "60"))
time.sleep(60)
"""


def test_process_owner_killed_leaves_no_process_and_no_temp_folder(folder: Path, tmp_path: Path) -> None:
    mark, temp = uuid.uuid4().hex, tmp_path / "temp"
    temp.mkdir()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(temp)}
    with subprocess.Popen([sys.executable, "-c", OWNER, str(folder), FAMILY, mark], env=environment) as owner:
        log = folder.parent / "job.log"
        until(lambda: log.exists() and "ready" in log.read_text())
        assert len(list(temp.iterdir())) == 1
        owner.send_signal(signal.SIGKILL)
    until(lambda: not living_with(mark), 10)
    until(lambda: not list(temp.iterdir()), 10)


@pytest.mark.parametrize(("number", "said"), [(9, "signal SIGKILL"), (40, "exit code 168")], ids=["named", "unnamed"])
def test_process_job_that_kills_its_keeper_is_a_crash_and_leaves_nothing(number: int, said: str, folder: Path) -> None:
    mark = uuid.uuid4().hex
    script = FAMILY.replace("print(", f"import os; os.kill(os.getppid(), {number}); print(")
    ended = run(script_job(folder, script, mark, "60"))
    assert (ended.end, ended.detail) == (End.CRASHED, f"its keeper ended with {said}")
    assert living_with(mark) == []


def test_process_job_outlives_the_thread_that_started_it(folder: Path) -> None:
    started = []
    job = script_job(folder, "import time; time.sleep(0.7); print('end')")
    thread = threading.Thread(target=lambda: started.append(ProcessSandbox().start(job)))
    thread.start()
    thread.join()
    with started[0] as running:
        assert running.wait().last == ("end",)


def test_process_environment_is_an_allow_list_and_its_home_is_private_and_goes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "planted-secret-1")
    monkeypatch.setenv("SOMETHING_ELSE", "seen")
    job = script_job(folder, "import json, os; print(json.dumps(dict(os.environ)))", environment={"MINE": "ü"})
    run(job)
    seen = json.loads(job.log.read_text())
    assert seen["MINE"] == "ü"
    assert not {"MY_API_KEY", "SOMETHING_ELSE"} & set(seen)
    assert seen["HOME"] == seen["TMPDIR"] != str(Path.home())
    assert not Path(seen["HOME"]).exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"environment": {"ANY_TOKEN": "x"}}, "would carry a key in ANY_TOKEN"),
        ({"environment": {"PLAIN": "a planted-secret-1"}}, "would carry a key in PLAIN"),
        ({"argv": ("python", "-c", "planted-secret-1")}, "word 2 of its command holds a key"),
    ],
)
def test_process_job_that_carries_a_key_is_refused_without_naming_it(
    change: dict[str, object], said: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "planted-secret-1")
    with pytest.raises(InputError, match=said) as caught:
        ProcessSandbox().start(script_job(folder, "pass", **change))
    assert "planted" not in str(caught.value)


def test_process_key_in_the_file_of_settings_is_refused_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / ".env").write_text("OPENAI_API_KEY=planted-secret-2\n")
    with pytest.raises(InputError, match="holds a key"):
        ProcessSandbox().start(script_job(folder, "planted-secret-2"))


def test_process_limits_are_in_the_job_where_the_kernel_holds_them(folder: Path) -> None:
    script = """
        import os, resource as r
        print(r.getrlimit(r.RLIMIT_FSIZE)[0], r.getrlimit(r.RLIMIT_CORE)[1], r.getrlimit(r.RLIMIT_CPU)[0],
              os.nice(0), os.getsid(0) == os.getpid())
    """
    job = script_job(folder, textwrap.dedent(script), limits=replace(LIMITS, seconds=30))
    assert run(job).last == (f"{8 << 20} 0 {90 * (os.cpu_count() or 1)} 5 True",)


@pytest.mark.parametrize("what", ["command", "folder"])
def test_process_command_or_folder_that_is_not_there_is_named(what: str, folder: Path) -> None:
    job = script_job(folder, "pass")
    change = {"argv": ("no-such-program",)} if what == "command" else {"folder": folder / "gone"}
    with pytest.raises(InputError, match=re.escape("no-such-program" if what == "command" else "gone")):
        run(replace(job, **change))


def test_process_imports_ratchet_and_not_what_lies_in_its_folder(folder: Path) -> None:
    (folder / "json.py").write_text("raise SystemExit('planted')")
    assert run(script_job(folder, "import json, ratchet.core; print(ratchet.__version__)")).end is End.DONE
