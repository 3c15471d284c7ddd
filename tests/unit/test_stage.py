"""A stage's process: its exit codes, its one line, its provenance; each in a real child process and a real folder."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from ratchet.core import atomic
from ratchet.core.errors import InfrastructureError, InputError
from ratchet.stage import guarded, require, write_provenance

STAGE = """
from pathlib import Path
from typing import NamedTuple
from ratchet.core import atomic
from ratchet.params import Params
from ratchet.stage import Stage

class P(Params):
    times: int = 2

class Inputs(NamedTuple):
    text: Path = Path("data/in.txt")

class Outputs(NamedTuple):
    out: Path = Path("data/copy/out.txt")
    provenance: Path = Path("data/copy/provenance.json")

def run(params: P, inputs: Inputs, outputs: Outputs) -> None:
    atomic.write_text(outputs.out, inputs.text.read_text() * params.times)
    BODY

STAGE = Stage("copy", P, Inputs(), Outputs(), run)
STAGE.main()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "in.txt").write_text("ü")
    (tmp_path / "params.yaml").write_text("copy: {times: 3}\n")
    (tmp_path / "constraints.txt").write_text("a==1\n")
    return tmp_path


def main(project: Path, body: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    (project / "copy_step.py").write_text(STAGE.replace("BODY", body))
    command = [sys.executable, "copy_step.py"]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, env=environment or None)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("train", '{"steps": 0}', "metrics/train.json: "),
        ("trian", "{}", "metrics: no stage 'trian' has a schema; did you mean 'train'?"),
    ],
)
def test_main_metrics_that_no_reader_would_take_end_it_before_dvc_takes_them_up(
    project: Path, name: str, value: str, said: str
) -> None:
    source = STAGE.replace(
        'data/copy/out.txt")', f'data/copy/out.txt")\n    metrics: Path = Path("metrics/{name}.json")'
    )
    (project / "metrics").mkdir()
    (project / "copy_step.py").write_text(source.replace("BODY", f"outputs.metrics.write_text({value!r})"))
    ran = subprocess.run([sys.executable, "copy_step.py"], cwd=project, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr.startswith(said)
    assert "Traceback" not in ran.stderr
    assert not (project / "data/copy/provenance.json").exists()


def test_main_writes_outputs_and_provenance_beside_them(project: Path) -> None:
    done = main(project)
    assert (done.returncode, done.stderr) == (0, "")
    assert (project / "data/copy/out.txt").read_text() == "üüü"
    facts = json.loads((project / "data/copy/provenance.json").read_text())
    assert facts["stage"] == "copy"
    assert facts["argv"] == ["copy_step.py"]
    assert facts["commit"] is None
    assert facts["constraints_sha256"]
    assert facts["device"].startswith("cpu")
    assert facts["threads"] == 1


def test_main_records_the_image_digest_of_the_settings(project: Path) -> None:
    main(project, RATCHET_IMAGE_DIGEST="sha256:abc")
    assert json.loads((project / "data/copy/provenance.json").read_text())["image_digest"] == "sha256:abc"


@pytest.mark.slow
def test_main_records_the_device_and_threads_of_the_settings_whatever_torch_says(project: Path) -> None:
    """A stage that computes in children (the judge) leaves its own process' torch as it was."""
    script = STAGE.replace("BODY", "import torch; torch.set_num_threads(2)")
    script = script.replace("Outputs(), run)", "Outputs(), run, used_machine)")
    (project / "copy_step.py").write_text("from ratchet.train.device import used_machine\n" + script.lstrip())
    environment = {**os.environ, "RATCHET_THREADS": "1", "RATCHET_DEVICE": "cpu"}
    subprocess.run([sys.executable, "copy_step.py"], cwd=project, env=environment, check=True)
    facts = json.loads((project / "data/copy/provenance.json").read_text())
    assert (facts["threads"], facts["versions"]["torch"]) == (1, __import__("torch").__version__)
    assert facts["device"].startswith("cpu (")


def test_main_interrupted_from_the_keyboard_is_one_line_and_exit_code_130(project: Path) -> None:
    done = main(project, "import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    assert (done.returncode, done.stderr) == (130, "copy: interrupted; run again\n")
    assert not (project / "data/copy/provenance.json").exists()


@pytest.mark.parametrize("fault", ["params", "input", "section"])
def test_main_wrong_input_is_one_line_exit_code_2_and_no_output(project: Path, fault: str) -> None:
    match fault:
        case "params":
            (project / "params.yaml").write_text("copy: {tims: 3}\n")
        case "section":
            (project / "params.yaml").write_text("copi: {}\n")
        case _:
            (project / "data" / "in.txt").unlink()
    done = main(project)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert {"params": "did you mean 'times'?", "section": "'copi'", "input": "data/in.txt does not exist"}[
        fault
    ] in done.stderr
    assert not (project / "data" / "copy").exists()


def test_main_wrong_setting_is_told_before_the_work(project: Path) -> None:
    done = main(project, RATCHET_THREADS="many")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert not (project / "data" / "copy").exists()


def test_main_unknown_error_keeps_its_traceback_and_writes_no_provenance(project: Path) -> None:
    done = main(project, "raise KeyError('who')")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert not (project / "data/copy/provenance.json").exists()


def test_main_sweeps_the_temps_of_dead_writers_beside_its_outputs(project: Path) -> None:
    stale = project / "data" / "copy" / f".out.txt{atomic.TEMP_MARK}4194303"
    stale.parent.mkdir()
    stale.write_text("half")
    main(project)
    assert not stale.exists()


def failing(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InputError("a", "is wrong", "mend it"), 2, "a: is wrong; mend it\n"),
        (InfrastructureError("a", "is down", "wait"), 3, "a: is down; wait\n"),
        (
            OSError(errno.ENOSPC, "full", "out.bin"),
            2,
            "copy: the disk is full while writing out.bin; free space and run again\n",
        ),
        (OSError(errno.EDQUOT, "quota"), 2, "copy: the disk is full while writing a file; free space and run again\n"),
    ],
)
def test_guarded_known_error_is_one_line_and_its_code(
    error: Exception, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded("copy", lambda: failing(error)) == code
    assert capsys.readouterr().err == said


def test_guarded_other_os_error_is_not_hidden() -> None:
    with pytest.raises(PermissionError):
        guarded("copy", lambda: failing(PermissionError("no")))


def test_require_names_the_first_missing_path(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"train: input .*/b does not exist"):
        require((tmp_path, tmp_path / "b", tmp_path / "c"), "train")


def test_write_provenance_outputs_without_the_field_write_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Outputs(NamedTuple):
        out: Path = Path("out")

    monkeypatch.chdir(tmp_path)
    write_provenance("copy", Outputs())
    assert list(tmp_path.iterdir()) == []
