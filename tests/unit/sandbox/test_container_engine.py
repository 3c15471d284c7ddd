"""What the container sandbox does when the engine answers badly or the disk is full. The engine is played."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker
import pytest
from docker.errors import APIError, NotFound

from jobs import script_job
from ratchet.core.errors import InfrastructureError
from ratchet.sandbox.choose import choose
from ratchet.sandbox.container import OWNER_LABEL, ContainerSandbox, RunningContainer
from ratchet.sandbox.hand_over import Hands
from ratchet.sandbox.owners import Owner
from ratchet.settings import Settings


class Engine:
    """An engine with containers, by id. `fails`: what it answers instead of listing them, and of removing each."""

    def __init__(self, **containers: Owner) -> None:
        self.containers_now = containers
        self.fails: dict[str, Exception] = {}

    def version(self) -> dict[str, str]:
        return {"Version": "0"}

    def inspect_image(self, _image: str) -> dict[str, Any]:
        return {"Id": "sha256:0"}

    def containers(self, **_: object) -> list[dict[str, Any]]:
        self._fail("list")
        return [
            {"Id": name, "Names": [f"/{name}"], "Labels": {OWNER_LABEL: str(owner)}}
            for name, owner in self.containers_now.items()
        ]

    def remove_container(self, name: str, **_: object) -> None:
        self._fail(name)
        del self.containers_now[name]

    def _fail(self, what: str) -> None:
        if what in self.fails:
            raise self.fails[what]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine without containers, and every sandbox made on it."""
    made = Engine()
    monkeypatch.setattr(docker, "from_env", lambda **_: SimpleNamespace(api=made))
    return made


def test_engine_that_fails_while_it_is_cleaned_is_no_engine(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.fails["list"] = APIError("database is broken")
    with pytest.raises(InfrastructureError, match=r"sandbox: the engine .*: database is broken; see to the engine"):
        ContainerSandbox("any")
    assert choose(Settings(sandbox="auto")).kind == "process"
    assert "database is broken" in capsys.readouterr().err


def test_reap_keeps_in_mind_what_the_engine_did_not_remove_and_forgets_what_is_gone(engine: Engine) -> None:
    sandbox = ContainerSandbox("any")
    engine.containers_now = {name: Owner.me() for name in ("stays", "goes", "was-removed", "runs")}
    engine.fails = {"stays": APIError("device or resource busy"), "was-removed": NotFound("no such container")}
    sandbox._lost.update({"stays", "goes", "was-removed", "not-there"})
    assert sandbox.reap() == ["goes", "was-removed"]
    assert sandbox._lost == {"stays"}
    engine.fails = {"list": APIError("is busy")}
    with pytest.raises(InfrastructureError, match="is busy"):
        sandbox.reap()
    assert sandbox._lost == {"stays"}
    engine.fails = {}
    assert sandbox.reap() == ["stays"]
    assert sandbox._lost == set()
    assert "runs" in engine.containers_now


class Printing(Engine):
    """An engine with one container that prints until it is killed, and a little longer."""

    def __init__(self) -> None:
        super().__init__(it=Owner.me())
        self.killed = threading.Event()
        self.killers: list[threading.Thread] = []

    def attach(self, *_: object, **__: object) -> Iterator[bytes]:
        while not self.killed.wait(0.01):
            yield b"said"
        yield from [b"still said"] * 5

    def start(self, _container: str) -> None:
        pass

    def wait(self, _container: str) -> dict[str, int]:
        assert self.killed.wait(10)
        return {"StatusCode": 137}

    def kill(self, *_: object) -> None:
        self.killers.append(threading.current_thread())
        self.killed.set()

    def inspect_container(self, _container: str) -> dict[str, Any]:
        return {"State": {"OOMKilled": False}}

    def close(self) -> None:
        pass


def test_log_that_cannot_be_kept_ends_the_job_once_and_not_from_the_thread_that_reads(folder: Path) -> None:
    engine = Printing()
    job = replace(script_job(folder, "pass"), log=Path("/dev/full"))
    api: Any = engine
    with RunningContainer(api, "it", job, "a job", Hands(0, 0), set()) as running:
        with pytest.raises(InfrastructureError, match="its output cannot be kept: No space left on device"):
            running.wait()
        assert engine.killers != [running._reader]
        assert len(engine.killers) == 1
    assert engine.containers_now == {}


def test_folders_are_taken_back_though_a_file_in_them_is_gone_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there/file").touch()
    given: list[str] = []

    def chown(path: Path, *_: object, **__: object) -> None:
        path.stat()
        given.append(path.name)

    monkeypatch.setattr("os.chown", chown)
    Hands(0, 0, (tmp_path / "gone", tmp_path / "there")).take_back()
    assert given == ["there", "file"]
