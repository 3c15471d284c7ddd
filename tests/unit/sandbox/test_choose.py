"""Which sandbox a run gets, said in one line; and who is certainly gone. No engine is needed: there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.core.errors import InfrastructureError
from ratchet.sandbox.choose import choose
from ratchet.sandbox.owners import Owner
from ratchet.sandbox.stage_container import passed_on
from ratchet.settings import Settings


@pytest.fixture(autouse=True)
def no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")


def test_choose_auto_without_an_engine_takes_a_process_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert choose(Settings(sandbox="auto")).isolation == "weak"
    said = capsys.readouterr().err
    assert said.startswith("sandbox: process, isolation weak: no container engine answers: ")
    assert said.endswith("RATCHET_SANDBOX=required would refuse\n")
    assert said.count("\n") == 1


@pytest.mark.parametrize("wish", ["required", "container"])
def test_choose_a_container_that_cannot_be_had_is_refused_in_one_line(wish: str) -> None:
    with pytest.raises(InfrastructureError) as caught:
        choose(Settings(sandbox=wish))  # pyright: ignore[reportArgumentType]
    said = str(caught.value)
    assert said.startswith(f"sandbox: RATCHET_SANDBOX={wish}, but no container engine answers: ")
    assert (caught.value.exit_code, "\n" in said) == (3, False)


def test_choose_a_process_by_name_asks_no_engine_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert choose(Settings(sandbox="process"), device="cuda").kind == "process"
    assert capsys.readouterr().err == "sandbox: process, isolation weak: RATCHET_SANDBOX=process\n"


def test_owner_lives_until_its_process_ends_and_another_with_its_number_is_not_it() -> None:
    assert not Owner.me().is_gone()
    code = "from ratchet.sandbox.owners import Owner; print(Owner.me())"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    other = Owner.read(said.stdout.strip())
    assert other is not None
    assert other.is_gone()
    assert Owner(other.machine, os.getpid(), "1.00").is_gone()
    assert not Owner("another-machine", other.pid, other.started).is_gone()
    assert Owner.read(str(Owner.me())) == Owner.me()
    assert Owner.read("nobody") is None


def test_settings_passed_into_a_container_are_those_made_and_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "planted-secret-1")
    values = Settings(threads=2, wandb="online", stages_in="container", runs=Path("runs ü"), sandbox="required")
    passed = passed_on(values)
    assert (passed["RATCHET_THREADS"], passed["RATCHET_RUNS"], passed["RATCHET_WANDB"]) == ("2", "runs ü", "offline")
    assert not {"RATCHET_STAGES_IN", "RATCHET_SANDBOX", "RATCHET_HUB_TOKEN"} & set(passed)
    assert "planted" not in str(passed)


def test_choose_for_a_device_that_no_container_has_asks_no_engine() -> None:
    with pytest.raises(InfrastructureError, match="no container can use the device mps; set RATCHET_DEVICE=cpu"):
        choose(Settings(sandbox="required"), device="mps")
