"""`python arena/train.py > run.log 2>&1` and the published grep, as a user types them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from ratchet.settings import Settings, child_environment
from ratchet.train import standalone
from ratchet.train.device import Device
from toy_training import make_project


def run_arena(project: Path) -> int:
    environment = child_environment(RATCHET_THREADS="1", RATCHET_WANDB="disabled", RATCHET_DEVICE="cpu")
    command = f'"{sys.executable}" arena/train.py > run.log 2>&1'
    return subprocess.run(command, shell=True, cwd=project, env=environment, check=False, timeout=280).returncode


@pytest.mark.slow
def test_standalone_prints_the_published_block_and_the_published_grep_finds_it(tmp_path: Path) -> None:
    project = make_project(tmp_path / "my project")
    assert run_arena(project) == 0, (project / "run.log").read_text()
    grep = ["grep", r"^val_bpb:\|^peak_vram_mb:", "run.log"]
    found = subprocess.run(grep, cwd=project, capture_output=True, text=True, check=True).stdout.splitlines()
    values = dict(line.split() for line in found)
    assert 0.5 < float(values["val_bpb:"]) < 8
    assert float(values["peak_vram_mb:"]) > 50
    block = (project / "run.log").read_text().partition("---\n")[2].splitlines()
    keys = "val_bpb training_seconds total_seconds peak_vram_mb mfu_percent total_tokens_M num_steps num_params_M depth"
    assert [line.partition(":")[0] for line in block] == keys.split()
    assert not (project / "data/train").exists()


@pytest.mark.slow
def test_standalone_judges_by_the_evaluate_section_and_holds_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = make_project(tmp_path / "project", horizon={"unit": "steps", "value": 2})
    params = yaml.safe_load((project / "params.yaml").read_text())
    (project / "params.yaml").write_text(yaml.safe_dump(params | {"evaluate": {"batch_rows": 2, "limit_s": 300.5}}))
    held: list[str] = []
    asked: dict[str, Any] = {}

    @contextmanager
    def exclusive(device: Device) -> Iterator[None]:
        held.append(device.kind)
        yield
        held.pop()

    def judge(*arguments: Any, **keywords: Any) -> Any:
        asked.update(keywords, held=list(held))
        return SimpleNamespace(val_bpb=2.5, startup_seconds=1.0, seconds=1.0)

    monkeypatch.setattr(standalone, "exclusive", exclusive)
    monkeypatch.setattr(standalone, "judge", judge)
    monkeypatch.setattr(standalone, "settings", lambda: Settings(device="cpu", threads=1, wandb="disabled"))
    monkeypatch.chdir(project)
    with pytest.raises(SystemExit) as ended:
        standalone.main("arena/train.py")
    assert ended.value.code == 0
    assert (asked["batch_rows"], asked["limit_s"], asked["held"]) == (2, 300.5, ["cpu"])
    assert "val_bpb:" in capsys.readouterr().out


@pytest.mark.slow
def test_standalone_without_packed_data_names_the_command_that_makes_it(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project")
    (project / "data/pack/val").rename(project / "elsewhere")
    assert run_arena(project) == 2
    log = (project / "run.log").read_text()
    assert log == "data/pack/val: no such folder; make the data once with `make run`, or `dvc repro pack`\n"
