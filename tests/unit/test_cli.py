"""The command line as a user types it, in real projects."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

from ratchet.commands.project import duration
from ratchet.commands.runs import find_run
from ratchet.core.errors import InputError
from ratchet.core.rundir import open_run
from toy_project import PROJECT, Toy


def ratchet(folder: Path, *arguments: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "COLUMNS": "200"}
    command = [sys.executable, "-m", "ratchet.cli", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout)


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return Toy(tmp_path / "с пробелом ü", tmp_path / "home")


def make_run(project: Path, number: int) -> Path:
    """A run with one committed step and a log."""
    with open_run("train", {"number": number}, {}, runs=project / "runs") as run:
        run.ledger.put(0, {"loss": 1.0})
        run.store.commit(1, {"step": 1}, {})
        (run.path / "train.log").write_text("step 1/2\nstep 2/2\n")
        return run.path


def test_help_reads_like_a_page_and_every_command_has_its_own(tmp_path: Path) -> None:
    page = ratchet(tmp_path, "--help")
    assert page.returncode == 0
    commands = ("run", "status", "logs", "stop", "resume", "init", "report", "doctor", "runs")
    for said in (*commands, "params.yaml", "ratchet run --profile smoke", "Exit codes"):
        assert said in page.stdout
    assert not any(len(line) > 200 for line in page.stdout.splitlines())
    assert "in a copy of the project" in " ".join(ratchet(tmp_path, "run", "--help").stdout.split())


def test_help_imports_nothing_heavy() -> None:
    heavy = ("torch", "prefect", "dvc", "pandas", "pydantic")
    probe = f"import sys, ratchet.cli; print([m for m in {heavy} if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", probe], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_outside_a_project_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    ran = ratchet(tmp_path, "run")
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr.strip().endswith("no dvc.yaml here or above; run in the folder of a Ratchet project")
    assert len(ran.stderr.strip().splitlines()) == 1


@pytest.mark.slow
def test_run_dry_run_says_what_and_why_and_up_to_date_says_so_without_prefect(toy: Toy) -> None:
    plan = ratchet(toy.root, "run", "--dry-run")
    assert plan.returncode == 0
    assert [line.split()[0] for line in plan.stdout.splitlines()[1:5]] == ["a", "left", "right", "end"]
    assert "never ran" in plan.stdout
    assert plan.stdout.rstrip().endswith("next: ratchet run")
    assert not (toy.root / "out").exists()

    Toy.repro(toy.root)
    (toy.root / "below").mkdir()
    done = ratchet(toy.root / "below", "run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("up to date: a, left, right, end")
    assert not (toy.root / ".ratchet/prefect/prefect.db").exists()

    wrong = ratchet(toy.root, "run", "--from", "lft")
    assert (wrong.returncode, wrong.stderr) == (2, "dvc.yaml: no stage 'lft'; did you mean 'left'?\n")


@pytest.mark.slow
def test_run_with_an_override_leaves_the_project_alone(toy: Toy) -> None:
    """The copy is brought up to date by hand, so that the run itself needs no Prefect."""
    Toy.repro(toy.root)
    toy.commit()
    before = toy.sh("git", "status", "--porcelain").stdout
    plan = ratchet(toy.root, "run", "-S", "a.number=5", "--dry-run")
    assert "parameter a.number 1 → 5" in plan.stdout
    (copy,) = (toy.root / ".ratchet/copies").iterdir()
    Toy.repro(copy)
    again = ratchet(toy.root, "run", "-S", "a.number=5")
    assert "up to date" in again.stdout
    assert (copy / "out/a").read_text() == "5"
    assert (toy.root / "out/a").read_text() == "1"
    assert toy.sh("git", "status", "--porcelain").stdout == before


@pytest.mark.slow
def test_status_json_and_table_name_stages_runs_and_copies(toy: Toy) -> None:
    Toy.repro(toy.root)
    toy.write("params.yaml", "a: {number: 1}\nleft: {fail: false, sleep: 0.1}\nright: {}\nend: {}\n")
    path = make_run(toy.root, 1)
    found = json.loads(ratchet(toy.root, "status", "--json").stdout)
    assert [(row["stage"], row["state"]) for row in found["stages"]] == [
        ("a", "up to date"),
        ("left", "changed"),
        ("right", "up to date"),
        ("end", "waiting"),
    ]
    (run,) = found["runs"]
    assert (run["loop"], run["fingerprint"], run["state"], run["seq"]) == ("train", path.name, "resumable", 1)
    table = ratchet(toy.root, "status").stdout
    assert "parameter left.sleep 0 → 0.1" in table
    assert f"train/{path.name}" in table
    assert "next: ratchet run" in table


@pytest.mark.slow
def test_logs_runs_and_stop_take_a_run_by_any_of_its_names(toy: Toy) -> None:
    path = make_run(toy.root, 1)
    for name in ("train", path.name[:6], f"train/{path.name}", f"runs/train/{path.name}"):
        assert ratchet(toy.root, "logs", name, "-n", "1").stdout == "step 2/2\n"
    toy.write(".ratchet/logs/train.log", "of the stage\n")
    assert ratchet(toy.root, "logs", "train").stdout == "of the stage\n"
    assert ratchet(toy.root, "stop", "train").stderr.startswith(f"runs/train/{path.name}: does not run: resumable")
    assert ratchet(toy.root, "stop").stderr.startswith("runs: which run? running: none; name one")
    assert f"train/{path.name}" in ratchet(toy.root, "runs", "ls").stdout
    assert ratchet(toy.root, "runs", "rm", "train").returncode == 0
    assert not path.exists()
    assert ratchet(toy.root, "runs", "ls").stdout.startswith("no runs yet")
    assert ratchet(toy.root, "runs", "gc").stdout.startswith("freed 0.0 MB")


@pytest.mark.slow
def test_stop_asks_the_process_that_holds_the_run(toy: Toy) -> None:
    holder = (
        "import json, time; from pathlib import Path; from ratchet.core.rundir import open_run\n"
        "with open_run('train', {'n': 1}, {}, runs=Path('runs')) as run:\n"
        "    run.store.commit(1, {'step': 4}, {})\n"
        "    live = {'step': 5, 'stop_step': 9, 'seconds_left': 130}\n"
        "    (run.path / 'progress.json').write_text(json.dumps(live))\n"
        "    print('held', flush=True)\n"
        "    while not run.stop_file.exists(): time.sleep(0.05)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", holder], cwd=toy.root, env={**os.environ, "PYTHONPATH": str(PROJECT)},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        for table in (ratchet(toy.root, "runs", "ls").stdout, ratchet(toy.root, "status").stdout):
            assert "5 of 9" in table
            assert f"pid {process.pid} holds it, 2 min left; step 4 is saved" in table
        (told,) = json.loads(ratchet(toy.root, "runs", "ls", "--json").stdout)
        assert (told["seq"], told["steps"], told["live"]["step"]) == (1, 4, 5)
        asked = ratchet(toy.root, "stop")
        assert f"pid {process.pid}" in asked.stdout
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()


def test_find_run_ambiguous_and_unknown_names_are_refused(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, number) for number in range(3)]
    time.sleep(0.01)
    assert find_run(runs[1].name, tmp_path / "runs").path == runs[1]
    with pytest.raises(InputError, match="no run 'zzz'"):
        find_run("zzz", tmp_path / "runs")
    with pytest.raises(InputError, match="fits several runs"):
        find_run("", tmp_path / "runs")


@pytest.mark.slow
def test_doctor_and_report_say_what_to_do(toy: Toy) -> None:
    toy.write("constraints.txt", "pydantic==0.0.1\n")
    toy.write("constraints-extras.txt", "")
    sick = ratchet(toy.root, "doctor", "--json")
    assert sick.returncode == 1
    findings = {row["what"]: row for row in json.loads(sick.stdout)}
    assert not findings["packages"]["good"]
    assert "(pinned 0.0.1)" in findings["packages"]["found"]
    assert findings["dvc"]["found"] == "4 stages, 4 of them to run"
    none = ratchet(toy.root, "report")
    assert (none.returncode, none.stderr) == (2, "data/plot/report.html: no report yet; type `ratchet run`\n")
    elsewhere = ratchet(toy.root, "report", "--profile", "seven")
    said = ".ratchet/copies/seven: no such copy yet; type `ratchet run --profile seven`\n"
    assert (elsewhere.returncode, elsewhere.stderr) == (2, said)
    assert not (toy.root / ".ratchet/copies").exists()
    toy.write("data/plot/report.html", "<p>")
    assert ratchet(toy.root, "report").stdout.strip() == str((toy.root / "data/plot/report.html").resolve())


def test_wandb_mirror_of_a_run_that_is_no_teams_says_what_sends_it(toy: Toy) -> None:
    run = make_run(toy.root, 1)
    ran = ratchet(toy.root, "wandb", "mirror", "train")
    said = f"wandb: train/{run.name} is a run of train; type `ratchet resume train`: it sends what is missing\n"
    assert (ran.returncode, ran.stderr) == (2, said)


@pytest.mark.slow
def test_report_is_served_to_this_machine_until_interrupted(toy: Toy) -> None:
    toy.write("data/plot/report.html", "<p>ü")
    command = [sys.executable, "-m", "ratchet.cli", "report", "--serve"]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "COLUMNS": "200"}
    with subprocess.Popen([*command, "0"], cwd=toy.root, env=environment, stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdout is not None
        assert serving.stdout.readline().endswith("report.html\n")
        address = serving.stdout.readline().partition(";")[0]
        assert address.startswith("http://127.0.0.1:")
        with urlopen(address, timeout=10) as page:
            assert page.read().decode() == "<p>ü"
        port = address.split(":")[2].partition("/")[0]
        taken = subprocess.run([*command, port], cwd=toy.root, env=environment, capture_output=True, text=True)
        assert (taken.returncode, taken.stderr) == (
            2,
            f"--serve: port {port}: Address already in use; name another one\n",
        )
        serving.send_signal(signal.SIGINT)
        assert serving.wait(30) == 0


@pytest.mark.parametrize(("seconds", "said"), [(3, "3 s"), (120, "2 min"), (7200, "2 h"), (200_000, "2 d")])
def test_duration_takes_the_largest_unit(seconds: float, said: str) -> None:
    assert duration(seconds) == said
