"""The container sandbox on a real engine: what a job sees, what holds it, how ends are told apart, and what is left."""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import docker
import pytest

from jobs import CASES, FORK_BOMB, LIMITS, job_of, living_with, script_job, until
from ratchet.core.errors import InfrastructureError, InputError
from ratchet.sandbox.container import OWNER_LABEL, RUN_LABEL, ContainerSandbox
from ratchet.sandbox.hand_over import ROOTS_HOME
from ratchet.sandbox.job import End, Ended, Job
from ratchet.sandbox.owners import Owner


@pytest.fixture(scope="module")
def sandbox(engine: docker.DockerClient, base_image: str) -> Iterator[ContainerSandbox]:
    """The sandbox under test. When all is done nothing of it may be on the engine."""
    volumes = {volume.name for volume in engine.volumes.list()}
    yield ContainerSandbox(base_image)
    assert mine(engine) == []
    assert {volume.name for volume in engine.volumes.list()} <= volumes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "ein Ordner ü" / "work"
    path.mkdir(parents=True)
    return path


def mine(engine: docker.DockerClient) -> list[str]:
    """The names of this process' containers on the engine."""
    label = {"label": f"{OWNER_LABEL}={Owner.me()}"}
    return [found.name for found in engine.containers.list(all=True, filters=label, ignore_removed=True)]


def run(sandbox: ContainerSandbox, job: Job) -> Ended:
    with sandbox.start(job) as running:
        return running.wait()


@pytest.mark.parametrize("name", CASES)
def test_container_each_end_is_told_apart(name: str, sandbox: ContainerSandbox, folder: Path) -> None:
    case = CASES[name]
    ended = run(sandbox, job_of(case, folder))
    assert (ended.end, ended.exit_code) == (case.end, case.code), ended
    assert case.said in "\n".join((ended.detail, *ended.last))


def test_container_fork_bomb_is_held_by_its_limit_and_then_by_the_clock(
    sandbox: ContainerSandbox, folder: Path
) -> None:
    mark = uuid.uuid4().hex
    ended = run(sandbox, script_job(folder, FORK_BOMB, mark, limits=replace(LIMITS, seconds=4)))
    assert ended.end is End.TIMED_OUT
    assert ended.detail.startswith("no end within 4 s, with all of its ")
    assert living_with(mark) == []


def test_container_log_bomb_of_ten_gigabytes_takes_no_more_than_its_limit(
    sandbox: ContainerSandbox, engine: docker.DockerClient, folder: Path
) -> None:
    job = script_job(folder, "import os\nfor _ in range(10 << 10): os.write(1, bytes(1 << 20))")
    with sandbox.start(job) as running:
        kept = engine.api.inspect_container(running.name)["HostConfig"]["LogConfig"]["Type"]
        assert running.wait().end is End.TOO_MUCH_OUTPUT
    assert (job.log.stat().st_size, kept) == (1 << 20, "none")


SEES = """
import json, os, sys
def opens(path, mode):
    try:
        open(path, mode).close()
        return "yes"
    except OSError as error:
        return error.strerror
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
told = {path: [opens(path, "rb"), opens(path, "ab")] for path in sys.argv[1:]}
told["who"] = [os.getuid(), os.getgid(), status["CapEff"], status["CapBnd"], status["NoNewPrivs"], status["Seccomp"]]
told["environment"] = dict(os.environ)
told["processes"] = len([name for name in os.listdir("/proc") if name.isdecimal()])
print(json.dumps(told))
"""


def test_container_job_sees_what_it_was_given_and_nothing_else(
    sandbox: ContainerSandbox, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "planted-secret-1")
    given, hidden = folder.parent / "given ü", folder.parent / "hidden"
    for path in (given, hidden):
        path.write_text("x")
        path.chmod(0o666)
    own, code = folder / "own", Path(sys.modules[Job.__module__].__file__ or "")
    paths = [*map(str, (given, hidden, own, code)), "/etc/x", "/usr/bin/x", "/tmp/x", "/var/run/docker.sock"]
    job = script_job(folder, SEES, *paths, reads=(given,), environment={"MINE": "ü"})
    assert run(sandbox, job).end is End.DONE
    told = json.loads(job.log.read_text())
    read_only, gone = "Read-only file system", "No such file or directory"
    assert told[str(given)] == ["yes", read_only]
    assert told[str(hidden)][0] == gone
    assert hidden.read_text() == given.read_text() == "x"
    assert told[str(own)] == [gone, "yes"]
    assert told[str(code)][0] == "yes"
    assert "yes" not in (told[str(code)][1], *told["/etc/x"], *told["/usr/bin/x"])
    assert told["/tmp/x"] == [gone, "yes"]
    assert told["/var/run/docker.sock"][0] == gone
    uid = os.getuid() or 65534
    assert told["who"] == [uid, os.getgid() or 65534, "0" * 16, "0" * 16, "1", "2"]
    assert told["processes"] <= 3  # init, and the script; nothing of the machine's
    assert told["environment"]["MINE"] == "ü"
    assert "planted" not in job.log.read_text()
    assert own.stat().st_uid == os.getuid()


@pytest.mark.parametrize(
    "attempt",
    [
        "socket.create_connection(('192.0.2.1', 80), timeout=5)",
        "socket.getaddrinfo('example.org', 80)",
        "socket.create_connection(('172.17.0.1', 22), timeout=5)",
    ],
)
def test_container_has_no_network(attempt: str, sandbox: ContainerSandbox, folder: Path) -> None:
    script = f"import socket\nassert [n for _, n in socket.if_nameindex()] == ['lo']\n{attempt}"
    ended = run(sandbox, script_job(folder, script))
    assert (ended.end, ended.exit_code) == (End.CRASHED, 1)
    assert "OSError" in ended.last[-1] or "gaierror" in ended.last[-1]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root and dockerd: it is about root's own home")
def test_container_job_of_a_project_in_roots_home_reaches_its_code_and_its_folder(sandbox: ContainerSandbox) -> None:
    with tempfile.TemporaryDirectory(dir=ROOTS_HOME) as home:
        (given := Path(home) / "a project/given").mkdir(parents=True)
        (given / "text").write_text("x")
        (folder := Path(home) / "a project/work").mkdir()
        (hidden := Path(home) / "hidden").write_text("x")
        script = "import os, sys; print(open(sys.argv[1]).read()); open('mine', 'w'); print(os.listdir(sys.argv[2]))"
        job = script_job(folder, script, str(given / "text"), home, reads=(given,))
        assert run(sandbox, job).end is End.DONE, job.log.read_text()
        assert job.log.read_text() == "x\n['a project']\n"
        assert (folder / "mine").exists()
        assert hidden.exists()


def test_container_tmp_is_bounded(sandbox: ContainerSandbox, folder: Path) -> None:
    script = "for i in range(100): open(f'/tmp/{i}', 'wb').write(bytes(4 << 20))"
    assert "No space left on device" in run(sandbox, script_job(folder, script)).last[-1]


def test_container_outputs_of_every_depth_belong_to_the_caller_and_are_writable_again(
    sandbox: ContainerSandbox, folder: Path
) -> None:
    (folder / "mine").write_text("before")
    script = "import os; os.makedirs('a/b'); open('a/b/c', 'w'); os.symlink('/etc/passwd', 'link'); open('mine', 'a')"
    assert run(sandbox, script_job(folder, script)).end is End.DONE
    for path in (folder, *folder.rglob("*")):
        assert path.lstat().st_uid == os.getuid(), path
    assert Path("/etc/passwd").stat().st_uid == 0


def test_container_descriptor_of_shared_memory_passes_over_a_socket_in_its_folder(
    sandbox: ContainerSandbox, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = """
        import mmap, socket, sys
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(sys.argv[1])
        _, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
        memory = mmap.mmap(descriptors[0], 4096)
        memory[:5] = b"hello"
        connection.sendall(b"x")
    """
    place = folder / "s"
    descriptor = os.memfd_create("shared")
    os.ftruncate(descriptor, 4096)
    with socket.socket(socket.AF_UNIX) as listener, mmap.mmap(descriptor, 4096) as memory:
        listener.settimeout(30)
        monkeypatch.chdir(folder)
        listener.bind("s")  # a path of a Unix socket holds 107 letters
        listener.listen(1)
        job = script_job(folder, textwrap.dedent(script), place.name)
        with sandbox.start(job):
            connection, _ = listener.accept()
            with connection:
                socket.send_fds(connection, [b"x"], [descriptor])
                assert connection.recv(1) == b"x"
        assert memory[:5] == b"hello"
    os.close(descriptor)


def test_container_stop_lets_a_job_save_and_takes_its_exit_code(sandbox: ContainerSandbox, folder: Path) -> None:
    script = """
        import signal, sys, time
        def save(*_):
            print("saved"); sys.exit(143)
        signal.signal(signal.SIGTERM, save)
        print("ready", flush=True)
        time.sleep(60)
    """
    job = script_job(folder, textwrap.dedent(script))
    with sandbox.start(job) as running:
        until(lambda: "ready\n" in job.log.read_text())
        assert running.poll() is None
        ended = running.stop(30)
        assert running.poll() == running.wait() == running.stop() == ended
    assert (ended.end, ended.exit_code, ended.last) == (End.STOPPED, 143, ("ready", "saved"))


def test_container_leaving_the_with_by_an_error_removes_it(
    sandbox: ContainerSandbox, engine: docker.DockerClient, folder: Path
) -> None:
    with pytest.raises(KeyError), sandbox.start(script_job(folder, "import time; time.sleep(60)")):
        raise KeyError
    assert mine(engine) == []


OWNER = """
import sys, time
from pathlib import Path
from jobs import script_job
from ratchet.sandbox.container import ContainerSandbox
job = script_job(Path(sys.argv[2]), "import time; print('ready', flush=True); time.sleep(60)", run=sys.argv[3])
running = ContainerSandbox(sys.argv[1]).start(job)
time.sleep(60)
"""


def test_container_of_a_killed_owner_is_reaped_and_that_of_a_living_one_is_not(
    sandbox: ContainerSandbox, engine: docker.DockerClient, base_image: str, tmp_path: Path, folder: Path
) -> None:
    theirs, run_name = tmp_path / "theirs" / "work", uuid.uuid4().hex
    theirs.mkdir(parents=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", OWNER, base_image, str(theirs), run_name]
    with subprocess.Popen(command, env=environment) as owner:
        log = theirs.parent / "job.log"
        until(lambda: log.exists() and "ready" in log.read_text())
        owner.send_signal(signal.SIGKILL)
    named = {"label": f"{RUN_LABEL}={run_name}"}
    assert len(engine.containers.list(all=True, filters=named)) == 1
    with sandbox.start(script_job(folder, "import time; time.sleep(60)")) as running:
        ContainerSandbox(base_image)
        assert running.poll() is None
        assert engine.containers.list(all=True, filters=named) == []


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"reads": (Path("/no/such/file"),)}, InputError, "/no/such/file does not exist"),
        ({"environment": {"ANY_TOKEN": "x"}}, InputError, "would carry a key in ANY_TOKEN"),
    ],
)
def test_container_wrong_job_is_refused_and_nothing_is_left(
    change: dict[str, object], error: type[Exception], said: str, sandbox: ContainerSandbox,
    engine: docker.DockerClient, folder: Path,
) -> None:  # fmt: skip
    with pytest.raises(error, match=said):
        sandbox.start(script_job(folder, "pass", **change))
    assert mine(engine) == []
    assert folder.stat().st_uid == os.getuid()


def test_container_gpu_that_the_engine_cannot_give_is_said_in_one_line(
    sandbox: ContainerSandbox, engine: docker.DockerClient, folder: Path
) -> None:
    if "nvidia" in engine.info()["Runtimes"]:
        assert run(sandbox, script_job(folder, "pass", device="cuda")).end is End.DONE
        return
    with pytest.raises(InfrastructureError, match="cannot give a container a GPU; install"):
        sandbox.start(script_job(folder, "pass", device="cuda:0"))


def test_container_image_that_is_not_there_is_said_in_one_line(sandbox: ContainerSandbox) -> None:
    with pytest.raises(InfrastructureError, match=r"no image ratchet-none:1; build it: .*build\.py"):
        ContainerSandbox("ratchet-none:1")


def test_container_file_that_only_root_reads_is_refused_for_a_job_that_is_not_root(
    sandbox: ContainerSandbox, folder: Path
) -> None:
    secret = folder.parent / "secret"
    secret.write_text("x")
    secret.chmod(0o600)
    job = script_job(folder, "print(open(__import__('sys').argv[1]).read())", str(secret), reads=(secret,))
    if os.getuid():
        assert run(sandbox, job).last == ("x",)
    else:
        with pytest.raises(InputError, match="is for its owner alone"):
            sandbox.start(job)
