"""Stages in containers: the command of dvc.yaml, one setting, the same bytes; only declared inputs; kills and keys."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import docker
import pytest
import yaml

import made_result
from jobs import until
from ratchet import params
from ratchet.core.fingerprint import file_digest
from ratchet.sandbox.container import RUN_LABEL, ContainerSandbox
from stage_runs import PLANTED, Pipeline, environment, outputs, run_stage

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_stages_in_containers_give_the_same_bytes(here: Pipeline, there: Pipeline) -> None:
    assert len(outputs(here.project)) > 15
    assert outputs(there.project) == outputs(here.project)
    (ours,), (theirs,) = ((made.project / "runs/train").iterdir() for made in (here, there))
    assert ours.name == theirs.name, "the same run, which either may continue"


@pytest.mark.slow
def test_stages_in_containers_say_in_their_provenance_which_image(
    here: Pipeline, there: Pipeline, cpu_image: str
) -> None:
    for file in ("data/pack/provenance.json", "data/train/provenance.json"):
        ours, theirs = (json.loads((made.project / file).read_text()) for made in (here, there))
        assert ours["image_digest"] is None
        assert theirs["image_digest"] == ContainerSandbox(cpu_image).image_digest
        assert theirs["versions"].pop("python")
        assert ours["versions"].pop("python")
        for facts, made in ((ours, here), (theirs, there)):
            facts["argv"] = [Path(facts["argv"][0]).relative_to(made.project), *facts["argv"][1:]]
        changed = {key for key in ours if ours[key] != theirs[key]}
        assert changed <= {"image_digest", "platform"}, changed


@pytest.mark.slow
def test_stages_in_containers_leave_outputs_of_the_caller_and_nothing_beside_them(there: Pipeline) -> None:
    for path in there.project.rglob("*"):
        assert path.lstat().st_uid == os.getuid(), path
    assert list(there.project.rglob("*ratchet-tmp*")) == []


@pytest.mark.slow
def test_no_planted_key_reaches_an_artifact_a_log_or_the_image(
    here: Pipeline, there: Pipeline, engine: docker.DockerClient, cpu_image: str
) -> None:
    searched = 0
    for made in (here, there):
        assert PLANTED not in made.said
        for path in made.project.rglob("*"):
            if path.is_file() and path.name != ".env":
                assert PLANTED.encode() not in path.read_bytes(), path
                searched += 1
    assert searched > 60
    image = engine.images.get(cpu_image)
    assert PLANTED not in json.dumps([image.attrs, image.history()])
    rest, plain = b"", False
    for chunk in image.save(chunk_size=1 << 24):  # every layer
        assert PLANTED.encode() not in rest + chunk
        plain = plain or b"\nRequires-Dist: " in chunk  # what each installed package has
        rest = chunk[-64:]
    assert plain, "the layers are compressed: nothing planted would be seen"


@pytest.mark.slow
def test_stage_plot_in_a_container_draws_the_same_bytes(tmp_path: Path, cpu_image: str) -> None:
    drawn = []
    for where in ("process", "container"):
        project = tmp_path / where
        made_result.make_result(project, steps=120, documents=60)
        (project / "ratchet/report").mkdir(parents=True)
        for name in ("page.css", "page.js"):
            shutil.copy(ROOT / "ratchet/report" / name, project / "ratchet/report" / name)
        (project / "params.yaml").write_text("plot: {smoothing: 0.05, dpi: 60, documents: 0}\n")
        done = run_stage(project, "plot", cpu_image, where)
        assert done.returncode == 0, done.stdout + done.stderr
        drawn.append({path.name: file_digest(path) for path in (project / "data/plot").iterdir()})
    assert drawn[0] == drawn[1]


@pytest.mark.slow
def test_train_in_a_container_killed_with_its_owner_goes_on_to_the_same_bytes(
    here: Pipeline, tmp_path: Path, cpu_image: str, engine: docker.DockerClient
) -> None:
    project = tmp_path / "killed ü"
    shutil.copytree(here.project, project)
    for made in ("data/train", "runs"):
        shutil.rmtree(project / made)
    with subprocess.Popen(
        [sys.executable, "-m", "steps.train"], cwd=project, env=environment(cpu_image, "container"),
        stdout=subprocess.DEVNULL,
    ) as owner:  # fmt: skip
        until(lambda: list(project.glob("runs/train/*/checkpoints/*")), 120)
        owner.send_signal(signal.SIGKILL)
    assert not (project / "data/train/model").exists()
    done = run_stage(project, "train", cpu_image)
    assert done.returncode == 0, done.stdout + done.stderr
    assert outputs(project) == outputs(here.project)
    assert engine.containers.list(all=True, filters={"label": f"{RUN_LABEL}=stage train"}) == []
    assert list(project.rglob("*ratchet-tmp*")) == []


def with_body(project: Path, body: str) -> None:
    """A stage whose work is `body`."""
    script = f"""
from pathlib import Path
from typing import NamedTuple
from ratchet.params import Params
from ratchet.stage import Stage

class Inputs(NamedTuple):
    text: Path = Path("data/in.txt")

class Outputs(NamedTuple):
    out: Path = Path("data/copy/out.txt")

def run(params: Params, inputs: Inputs, outputs: Outputs) -> None:
    outputs.out.parent.mkdir(exist_ok=True)
    {body}

Stage("copy", Params, Inputs(), Outputs(), run).main()
"""
    (project / "data/secret").mkdir(parents=True)
    (project / "data/in.txt").write_text("in")
    (project / "data/secret/val.txt").write_text("hidden")
    (project / ".env").write_text("OPENAI_API_KEY=x\n")
    (project / "copy_step_of_others.py").touch()
    (project / "params.yaml").write_text("copy: {}\n")
    (project / "copy_step.py").write_text(script)


COPIES_AND_LOOKS = """for hidden in ("data/secret/val.txt", ".env", "copy_step_of_others.py"):
        assert not Path(hidden).exists(), hidden
    assert sorted(path.name for path in Path("data").iterdir()) == ["copy", "in.txt"]
    outputs.out.write_text(inputs.text.read_text())"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        (COPIES_AND_LOOKS, 0, ""),
        ("inputs.text.write_text('x')", 1, "data/in.txt"),
        ("raise SystemExit(7)", 7, ""),
        ("pass", 2, "ended without writing data/copy/out.txt"),
        ("outputs.out.symlink_to('/etc/passwd')", 2, "holds a link or a pipe"),
        (
            "from ratchet.core.errors import InfrastructureError as E; raise E('a', 'is down', 'wait')",
            3,
            "a: is down; wait",
        ),
    ],
    ids=["copies", "writes its input", "exits", "writes nothing", "links", "blames the world"],
)
def test_stage_in_a_container_sees_declared_inputs_alone_and_ends_with_its_own_code(
    body: str, code: int, said: str, tmp_path: Path, cpu_image: str
) -> None:
    project = tmp_path / "p ü"
    project.mkdir()
    with_body(project, body)
    done = subprocess.run(
        [sys.executable, "copy_step.py"],
        cwd=project,
        env=environment(cpu_image, "container"),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done.stdout + done.stderr
    assert (project / "data/copy/out.txt").exists() == (code == 0)
    assert (project / "data/secret/val.txt").read_text() == "hidden"


@pytest.mark.slow
def test_stage_that_needs_the_network_runs_outside_and_says_so(tmp_path: Path, cpu_image: str) -> None:
    project = tmp_path / "p"
    project.mkdir()
    values = params.read_document(ROOT / "params.yaml")
    values["prepare"]["source"] = "huggingface"
    (project / "params.yaml").write_text(yaml.safe_dump(values))
    more = {"RATCHET_HUB": "http://127.0.0.1:9", "RATCHET_DOWNLOAD_ATTEMPTS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "steps.prepare"], cwd=project, env={**environment(cpu_image, "container"), **more},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 3
    assert "prepare: runs outside a container: source huggingface downloads" in done.stderr


@pytest.mark.slow
def test_stage_without_an_engine_is_refused_in_one_line(here: Pipeline, cpu_image: str, tmp_path: Path) -> None:
    nowhere = {**environment(cpu_image, "container"), "DOCKER_HOST": f"unix://{tmp_path}/none"}
    done = subprocess.run(
        [sys.executable, "-m", "steps.tokenizer"], cwd=here.project, env=nowhere, capture_output=True, text=True
    )
    assert done.returncode == 3
    assert done.stderr.startswith("sandbox: no container engine answers: ")
    assert done.stderr.count("\n") == 1
