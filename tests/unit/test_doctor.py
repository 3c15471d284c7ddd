"""`ratchet doctor`: what it finds, of the machine and of each stage; every line that is not good says what to do.

A copy of the shipped project stands in a folder of its own; nothing is trained and no stage runs.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

from ratchet.commands import doctor, doctor_machine, doctor_memory, doctor_stages, params_of
from ratchet.commands.doctor_machine import Finding
from ratchet.core.errors import InputError
from ratchet.params import merge, parse_override
from ratchet.settings import Settings, settings
from toy_project import PROJECT

STAGES = ("prepare", "tokenizer", "pack", "train", "evaluate", "iterate", "skill", "team", "plot")
KEY = "sk-not-to-be-seen-anywhere"
FREE = (64e9, "free on this machine")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The shipped project without its results, as the working directory; plenty of memory and room."""
    root = tmp_path / "ein Projekt"
    root.mkdir()
    for name in ("params.yaml", "dvc.yaml", "constraints.txt", "constraints-extras.txt"):
        shutil.copy(PROJECT / name, root / name)
    for name in ("arena", "skills", "team", "ratchet/report"):
        shutil.copytree(PROJECT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("RATCHET_LLM_BASE_URL", "RATCHET_LLM_KEY", "MY_KEY", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(root)
    monkeypatch.setattr(doctor_machine, "free_memory", lambda _kind, _index: FREE)
    monkeypatch.setattr(doctor_machine, "free_bytes", lambda _folder: 500 * 10**9)
    settings.cache_clear()
    yield root
    settings.cache_clear()


def where(**values: Any) -> Settings:
    """Settings with `values`, whatever the environment says."""
    return Settings.model_validate(values)


def look(stage: str, *overrides: str, **here: Any) -> dict[str, Finding]:
    """The findings on `stage` by name, under overrides of params.yaml and of the settings."""
    document = params_of.read(overrides)
    pipeline = yaml.safe_load(Path("dvc.yaml").read_text())["stages"]
    looked = doctor_stages.Looked(stage, document, where(device="cpu", **here), pipeline, ask=False)
    findings = list(doctor_stages.examine(looked))
    for finding in findings:
        assert finding.good or finding.do, f"{finding.what} does not say what to do"
    return {finding.what: finding for finding in findings}


@pytest.mark.parametrize("stage", STAGES)
def test_stage_of_the_shipped_project_is_well_and_every_part_was_looked_at(project: Path, stage: str) -> None:
    found = look(stage)
    assert [finding for finding in found.values() if not finding.good] == []
    assert {"inputs", "outputs", "params", "room"} <= set(found)
    assert ("memory" in found) == (stage in ("train", "evaluate", "iterate", "skill", "team"))


def test_params_name_the_knobs_that_were_filled_in_and_not_those_of_sections_that_are_not_read(project: Path) -> None:
    found = look("iterate")["params"].found
    assert found.startswith("valid; 6 filled in from defaults: iterate.train.stop_at = null")
    assert "iterate.llm" not in found
    assert look("train")["params"].found == "valid; every one is set in params.yaml"
    assert "iterate.llm.max_tokens = 8192" in look("iterate", "iterate.proposer=llm")["params"].found


def test_params_with_a_typo_are_named_and_the_rest_is_left_out(project: Path) -> None:
    found = look("train", "train.sed=2")
    assert list(found) == ["inputs", "outputs", "params"]
    assert found["params"].found == "params.yaml: unknown key 'train.sed'"
    assert found["params"].do == "did you mean 'seed'?"


def test_inputs_that_a_stage_makes_are_told_and_one_that_nobody_makes_is_missing(project: Path) -> None:
    assert look("train")["inputs"] == Finding(
        "inputs", True, "data/pack/train not here yet, pack makes it; data/tokenizer not here yet, tokenizer makes it"
    )
    Path("arena/program.md").unlink()
    missing = look("iterate")["inputs"]
    assert not missing.good
    assert missing.found == "arena/program.md: no such file, and no stage makes it"


def test_outputs_below_a_file_cannot_be_written(project: Path) -> None:
    Path("data").write_text("a file where a folder should be")
    found = look("pack")["outputs"]
    assert not found.good
    assert found.found == "data: Not a directory"
    assert not look("train", runs=Path("data/runs"))["outputs"].good


def test_outputs_that_may_not_be_written_are_told(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor_machine.tempfile, "TemporaryFile", refuse)
    assert ": Permission denied" in look("pack")["outputs"].found


def test_room_is_told_by_what_the_stage_wrote_the_last_time_and_what_its_run_keeps(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outs = [{"path": "data/train/model", "size": 50_000_000}, {"path": "data/train/history.tsv", "size": 1000}]
    Path("dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": {"train": {"outs": outs}}}))
    found = look("train")["room"].found
    assert "about 0.5 GB wanted (twice the 50 MB that dvc.lock says it wrote; 3 checkpoints of 0.1 GB)" in found
    monkeypatch.setattr(doctor_machine, "free_bytes", lambda _folder: 10**8)
    full = look("train")["room"]
    assert not full.good
    assert full.found.startswith("0.1 GB free")


def test_memory_too_small_says_how_the_need_was_estimated(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_machine, "free_memory", lambda _kind, _index: (10**9, "free on this machine"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    found = look("train", "train.dtype=float32")["memory"]
    assert not found.good
    assert "1.0 GB free on this machine, CUDA_VISIBLE_DEVICES = '1', about 1.2 GB wanted" in found.found
    assert "11.5M parameters" in found.found
    assert "16 rows x 256 tokens" in found.found
    assert not look("team")["memory"].good
    assert not look("skill")["memory"].good
    assert look("team", "team.model=tiny")["memory"].good


def test_memory_estimate_is_near_the_measured_step() -> None:
    """The measured one is of the same model, rows and context, with the trainer around it."""
    bench = json.loads((PROJECT / "bench/results/train_step_float32.json").read_text())
    model = doctor_memory.count(PROJECT / "arena/train.py", {}, 8192, 256)
    told = doctor_memory.training(model, 8192, 256, "float32", "cpu").size / 2**20
    assert told == pytest.approx(bench["figures"]["ours_peak_mb"], rel=0.25)


def test_memory_estimate_grows_with_depth_and_rows() -> None:
    sizes = []
    for knobs in ({}, {"DEPTH": 8}, {"BATCH_ROWS": 64}):
        model = doctor_memory.count(PROJECT / "arena/train.py", knobs, 8192, 256)
        sizes.append(doctor_memory.training(model, 8192, 256, "float32", "cpu").size)
    assert sizes[0] < sizes[1] < sizes[2]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("DEPTH = 1\n", "defines no function build(spec)"),
        ("def build(spec):\n    raise RuntimeError('broken')\n", "builds no model to count: RuntimeError: broken"),
        ("def build(:\n", "no Python"),
    ],
)
def test_arena_that_builds_nothing_is_told_once(project: Path, source: str, said: str) -> None:
    Path("arena/train.py").write_text(source)
    found = look("train")
    assert list(found) == ["inputs", "outputs", "params", "arena"]
    assert not found["arena"].good
    assert said in found["arena"].found


def test_knob_outside_its_range_is_told(project: Path) -> None:
    found = look("train", "train.knobs.DEPTH=99")["arena"]
    assert (found.good, found.found) == (False, "arena/train.py: DEPTH = 99 is outside 1 to 24")


def test_limit_of_a_candidate_below_its_need_is_told(project: Path) -> None:
    found = look("iterate", "iterate.limits.memory_mb=256")["limit"]
    assert not found.good
    assert found.do == "raise iterate.limits.memory_mb"


def test_compiled_step_without_a_compiler_is_told(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratchet.train.device.check_compiler", lambda _device: None)
    monkeypatch.setattr(doctor_stages.shutil, "which", lambda name: name if name == "g++" else None)
    assert look("train", "train.compile=true")["compiler"] == Finding(
        "compiler", True, "g++", "install g++, or set train.compile to false"
    )
    monkeypatch.setattr(doctor_stages.shutil, "which", lambda _name: None)
    assert not look("train", "train.compile=true")["compiler"].good


@pytest.mark.parametrize(
    ("stage", "overrides", "what", "said"),
    [
        ("prepare", ["prepare.source=text", "prepare.text.folder=nowhere"], "source", "0 files **/*.txt below nowhere"),
        ("prepare", ["prepare.package.sha256=null"], "params", "prepare.package.sha256 = None"),
        ("iterate", ["iterate.proposer=llm"], "proposer", "no model is named"),
        ("iterate", ["iterate.proposer=llm", "iterate.llm.model=m"], "proposer", "m: no address is set"),
        ("iterate", ["iterate.proposer=llm", "iterate.llm.record=no.jsonl"], "record", "no.jsonl: no such file"),
        ("iterate", ["iterate.proposer=command"], "proposer", "no command is named"),
        ("iterate", ["iterate.proposer=command", "iterate.command.template=no-such-agent {prompt_file}"],
         "proposer", "no-such-agent is not on the PATH"),
        ("iterate", ["iterate.proposer=replay"], "proposer", "none named: no results.tsv"),
        ("iterate", ["iterate.proposer=replay", "iterate.replay.session=old"], "proposer", "old: no results.tsv"),
        ("team", ["team.model=arena:nowhere"], "model", "arena:nowhere: no folder"),
        ("team", ["team.task=helpr"], "team", "team.task: 'helpr' is no task"),
        ("skill", ["skill.tasks.source=file"], "paths, ids, answers, splits", "skills/tasks.jsonl"),
    ],
)  # fmt: skip
def test_what_one_stage_alone_needs_is_missed(
    project: Path, stage: str, overrides: list[str], what: str, said: str
) -> None:
    found = look(stage, *overrides)[what]
    assert not found.good
    assert said in found.found


def test_knob_of_the_search_that_the_arena_has_not_is_told(project: Path) -> None:
    arena = Path("arena/train.py").read_text()
    Path("arena/train.py").write_text(arena.replace('SCALAR_LR: Annotated[float, 0.01, 2.0, "log"] =', "SCALAR_LR ="))
    found = look("iterate")["proposer"]
    assert (found.good, found.found) == (False, "the arena has no knob SCALAR_LR")
    assert "MATRIX_LR" in found.do


def test_command_on_the_path_is_found(project: Path) -> None:
    found = look("iterate", "iterate.proposer=command", "iterate.command.template=git {prompt_file}")["proposer"]
    assert found.good
    assert found.found == f"git is {shutil.which('git')}"


@pytest.mark.parametrize(("host", "good"), [("llm.example.com", False), ("localhost:8000", True), ("10.1.2.3", True)])
def test_key_that_is_not_set_is_missed_unless_the_endpoint_is_a_neighbour(project: Path, host: str, good: bool) -> None:
    found = look("iterate", "iterate.proposer=llm", "iterate.llm.model=m", llm_base_url=f"http://{host}/v1")["proposer"]
    assert found.good is good
    assert "RATCHET_LLM_KEY is not set" in found.found


def test_key_that_is_set_is_never_printed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    overrides = ["iterate.proposer=llm", "iterate.llm={model: m, key_variable: MY_KEY, base_url: https://e.example/v1}"]
    found = look("iterate", *overrides)
    assert found["proposer"].found == "m at e.example, MY_KEY is set"
    assert KEY not in str(found)
    monkeypatch.delenv("MY_KEY")
    assert look("iterate", *overrides)["iterate"].found == "environment: MY_KEY is not set"


def test_hub_that_does_not_answer_is_told_unless_something_was_fetched(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_machine, "reach", lambda host, port: "does not answer: refused")
    assert not look("prepare", "prepare.source=huggingface", hub="http://hub.example:81")["source"].good
    (project / "kept").mkdir()
    (project / "kept/shard").write_text("x")
    found = look("prepare", "prepare.source=huggingface", hub="http://hub.example:81", downloads=Path("kept"))["source"]
    assert found.good
    assert found.found == "hub.example:81 does not answer: refused; 1 files in kept; no token is set"


def test_stage_of_somebody_else_has_its_paths_looked_at() -> None:
    pipeline = {"mine": {"cmd": "true", "deps": ["nothing.csv"], "outs": ["out/mine"]}}
    looked = doctor_stages.Looked("mine", {}, where(), pipeline, ask=False)
    assert [(f.what, f.good) for f in doctor_stages.examine(looked)] == [("inputs", False), ("outputs", True)]


def test_device_that_is_not_there_is_told() -> None:
    found = doctor_machine.device(where(device="cuda:99"))
    assert not found.good
    assert "'cuda:99' asked for" in found.found
    assert "CUDA_VISIBLE_DEVICES" in found.found
    assert doctor_machine.device(where(device="cpu")).good


def test_visible_devices_that_are_not_there_are_told_before_a_night_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    found = doctor_machine.device(where(device="auto"))
    assert not found.good
    assert found.found.startswith("CUDA_VISIBLE_DEVICES = '7', but torch finds no such device")
    assert doctor_machine.device(where(device="cpu")).good
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert doctor_machine.device(where(device="auto")).good


def test_engine_that_does_not_answer_is_missed_only_where_it_is_demanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    required = doctor_machine.engine(where(sandbox="required"))
    assert not required.good
    assert required.do == "start one, or set RATCHET_SANDBOX=auto"
    stages = doctor_machine.engine(where(sandbox="process", stages_in="container"))
    assert (stages.good, stages.do) == (False, "start one, or set RATCHET_STAGES_IN=process")
    auto = doctor_machine.engine(where(sandbox="auto"))
    assert auto.good
    assert "isolation weak" in auto.found
    assert doctor_machine.engine(where(sandbox="process")).found.startswith("none is used")


def test_wandb_online_needs_a_key_and_never_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("NETRC", raising=False)
    missing = doctor_machine.wandb(where(wandb="online"))
    assert not missing.good
    assert "wandb login" in missing.do
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    there = doctor_machine.wandb(where(wandb="online", wandb_entity="team"))
    assert there.good
    assert "sends to team/ratchet" in there.found
    assert KEY not in str(there)
    assert doctor_machine.wandb(where(wandb="offline")).good
    assert doctor_machine.wandb(where(wandb="disabled")).found == "off: RATCHET_WANDB=disabled"


def remote(url: str, root: Path, **more: str) -> Finding:
    return doctor_machine.remote({"core": {"remote": "store"}, "remote": {"store": {"url": url, **more}}}, root)


def test_remote_folder_is_there_or_will_be_made_or_is_missed(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    assert remote(str(tmp_path / "store"), tmp_path).good
    assert "that the first push makes" in remote("new", tmp_path).found
    assert remote((tmp_path / "store").as_uri(), tmp_path).good
    gone = remote("/no/such/mount/point", tmp_path)
    assert (gone.good, gone.found) == (False, "store: no folder /no/such/mount/point")
    assert doctor_machine.remote({}, tmp_path).found.startswith("none")
    assert not doctor_machine.remote({"core": {"remote": "store"}}, tmp_path).good


def test_remote_in_the_network_is_asked_for_a_connection_alone(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = remote("s3://bucket/path", tmp_path, endpointurl=f"http://127.0.0.1:{port}")
        assert (found.good, found.found) == (True, f"store at 127.0.0.1:{port} takes connections")
    closed = remote("s3://bucket/path", tmp_path, endpointurl=f"http://127.0.0.1:{port}")
    assert not closed.good
    assert "does not answer" in closed.found
    assert "not asked" in remote("gs://bucket/path", tmp_path).found


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("s3://bucket/path", ("s3.amazonaws.com", 443)),
        ("ssh://user@host.example/path", ("host.example", 22)),
        ("http://host.example/path", ("host.example", 80)),
        ("https://host.example:8443/path", ("host.example", 8443)),
        ("azure://container/path", None),
    ],
)
def test_address_of_a_remote(url: str, address: tuple[str, int] | None) -> None:
    assert doctor_machine.address_of(url, url.partition(":")[0]) == address


def test_reach_waits_no_longer_than_its_patience_also_for_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "create_connection", lambda *_args, **_more: time.sleep(2) or socket.socket())
    began = time.monotonic()
    assert doctor_machine.reach("slow.example", 443, patience_s=0.2) == "does not answer within 0.2 s"
    assert time.monotonic() - began < 1.5
    assert doctor_machine.PATIENCE_S <= 3


def test_git_says_no_repository_then_no_commit_then_the_state(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    assert doctor._git(tmp_path).found == "no repository"
    git("init", "-q", "-b", "main")
    assert doctor._git(tmp_path).found == "no commit yet"
    git("commit", "-q", "--allow-empty", "-m", "start")
    (tmp_path / "new").write_text("x")
    found = doctor._git(tmp_path)
    assert found.good
    assert found.found.startswith("main at ")
    assert found.found.endswith(", 1 uncommitted changes")


def test_packages_off_the_pin_are_named(tmp_path: Path) -> None:
    file = tmp_path / "constraints.txt"
    assert not doctor.packages(file).good
    file.write_text("pydantic==0.0.1\nno-such-package==1\n")
    found = doctor.packages(file)
    assert not found.good
    assert "(pinned 0.0.1)" in found.found
    assert "no-such-package" not in found.found


def test_packages_that_two_files_pin_may_be_either(tmp_path: Path) -> None:
    results, extras = tmp_path / "constraints.txt", tmp_path / "constraints-extras.txt"
    results.write_text("pydantic==0.0.1\n")
    extras.write_text(f"# why\nPydantic=={metadata.version('pydantic')}\n")
    assert doctor.packages(results, extras).found == "1 as pinned"
    extras.write_text("pydantic==0.0.2\n")
    assert "(pinned 0.0.1 or 0.0.2)" in doctor.packages(results, extras).found


def test_wrong_setting_is_one_finding_and_the_stages_are_left_out(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RATCHET_WANDB", "sometimes")
    settings.cache_clear()
    (world,) = doctor._world()
    assert (world.what, world.good) == ("settings", False)
    (stages,) = doctor._stages(None, (), {"train": {}})
    assert (stages.what, stages.good) == ("stages", False)


def test_stage_line_tells_the_first_thing_that_is_wrong() -> None:
    bad, good = Finding("room", False, "none", "make some"), Finding("params", True, "valid")
    told = doctor._line("train", [good, bad, bad])
    assert told == Finding("stage train", False, "room: none; make some (and 1 more)", "`ratchet doctor train`")
    assert doctor._line("train", [good]).found == "1 checks: params"


def test_override_is_laid_over_params(project: Path) -> None:
    document = params_of.read(["train.seed=7"])
    assert document == merge(params_of.read(), parse_override("train.seed=7"))
    assert params_of.section("train", document).model_dump()["seed"] == 7
    with pytest.raises(InputError, match="has no section 'train'"):
        params_of.section("train", {})
    with pytest.raises(InputError, match="is not a mapping"):
        params_of.section("train", {"train": 3})


@pytest.mark.slow
def test_doctor_from_the_shell_looks_at_every_stage_and_ends_with_1_when_something_is_missing(project: Path) -> None:
    for command in (["git", "init", "-q"], [sys.executable, "-m", "dvc", "init", "-q"]):
        subprocess.run(command, check=True, timeout=60)
    for package in ("ratchet", "steps"):
        shutil.rmtree(project / package, ignore_errors=True)
        shutil.copytree(PROJECT / package, project / package, ignore=shutil.ignore_patterns("__pycache__"))

    def ask(*arguments: str, **more: str) -> tuple[int, list[dict[str, Any]]]:
        environment = {**os.environ, "RATCHET_DEVICE": "cpu", **more}
        command = [sys.executable, "-m", "ratchet.cli", "doctor", "--json", *arguments]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
        return ran.returncode, json.loads(ran.stdout)

    code, findings = ask()
    told = {finding["what"]: finding for finding in findings}
    assert {f"stage {stage}" for stage in STAGES} < set(told)
    assert {"python", "packages", "disk", "git", "dvc", "device", "containers", "wandb", "places"} < set(told)
    assert code == 1
    assert told["git"]["found"] == "no commit yet"
    code, findings = ask("plot", MPLBACKEND="nonsense")
    wrong = {finding["what"]: finding["do"] for finding in findings if not finding["good"]}
    assert set(wrong) == {"git", "backend", "params"}  # the stage's own module draws, so it cannot be imported
    assert "MPLBACKEND" in wrong["backend"]
    assert code == 1
