"""`ratchet results`, `watch`, `logs iterate/<n>`, and the hint of `stop` for a session in a copy."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import made_session
from ratchet import copies
from ratchet.commands import research, runs
from ratchet.core.errors import InputError
from ratchet.core.rundir import open_run
from ratchet.loops.research.events import Session
from ratchet.loops.research.view import Folder, View
from ratchet.settings import settings

PUBLISHED = (
    "commit\tval_bpb\tmemory_gb\tstatus\tdescription\n"
    "a1b2c3d\t0.997900\t44.0\tKEEP\tbaseline\n"
    "b2c3d4e\t0.993200\t44.2\tKEEP\tincrease LR to 0.04 with $x_1\n"
    "c3d4e5f\t0.000000\t0.0\tCRASH\tdouble model width (OOM)\n"
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    made_session.make_session(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RATCHET_RUNS", str(tmp_path / "runs"))
    settings.cache_clear()
    yield tmp_path
    settings.cache_clear()


def shown(capsys: pytest.CaptureFixture[str], file: Path | None = None, **more) -> str:
    options = {"png": None, "lenient": False, "hits": 10, "as_json": False, **more}
    research.results(research.ledger_file(file, None, []), **options)
    return capsys.readouterr().out


def test_results_of_a_published_ledger_fit_a_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "night.tsv"
    path.write_text(PUBLISHED)
    picture = tmp_path / "night.png"
    told = shown(capsys, path, png=picture)
    assert "2 experiments: 1 kept (1 better), 0 discarded, 1 crashed" in told
    assert "baseline: 0.997900; best 0.993200 (b2c3d4e), 0.004700 below it" in told
    assert "assumed: status 'KEEP' read as keep (2 rows)" in told
    assert "increase LR to 0.04 with $x_1" in told
    assert len(told.splitlines()) <= 24
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_results_messy_ledger_strict_refuses_lenient_lists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "night.tsv"
    path.write_text(PUBLISHED + "and so to bed\n")
    with pytest.raises(InputError, match=r"line 5: prose: 'and so to bed'.*--lenient"):
        shown(capsys, path)
    assert "left out: line 5: prose: 'and so to bed'" in shown(capsys, path, lenient=True)
    told = json.loads(shown(capsys, path, lenient=True, as_json=True))
    assert told["left_out"] == ["line 5: prose: 'and so to bed'"]
    assert told["best"] == 0.9932


def test_results_without_a_file_are_the_project_s_own(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = shown(capsys)
    assert told.startswith("data/iterate/results.tsv\n")
    assert "cost: 0.175" in told
    assert "SwiGLU in place of ReLU²" in told
    assert shown(capsys, project / "data/iterate").splitlines()[1:-1] == told.splitlines()[1:-1]


def test_results_before_a_session_say_what_to_type(project: Path) -> None:
    (project / "data/iterate/results.tsv").unlink()
    with pytest.raises(InputError, match="no session has published yet"):
        research.ledger_file(None, None, [])


def test_results_of_a_copy_are_those_that_its_overrides_made(project: Path) -> None:
    with pytest.raises(InputError, match=r"type `ratchet run --profile smoke -S iterate.seed=2`"):
        research.ledger_file(None, "smoke", ["iterate.seed=2"])
    copy = project / copies.COPIES / copies.name_of("smoke", ["iterate.seed=2"]) / "data/iterate"
    copy.mkdir(parents=True)
    with pytest.raises(InputError, match="no session has published yet"):
        research.ledger_file(None, "smoke", ["iterate.seed=2"])
    (copy / "results.tsv").write_text("")
    assert research.ledger_file(None, "smoke", ["iterate.seed=2"]) == (copy / "results.tsv").relative_to(project)


def running_session(project: Path):
    """An open run of the loop `iterate` with two experiments in its ledger, and the third under way."""
    run = open_run("iterate", {"number": 1}, {}, runs=project / "runs")
    entries = [{"number": at, "key": key} for at, key in enumerate(("base", "first", ""))]
    run.ledger.put(0, {"entries": entries[:1]})
    run.ledger.put(1, {"entries": entries[1:]})
    for key in ("base", "first", "third"):
        (run.path / "work" / key).mkdir(parents=True)
        (run.path / "work" / key / "run.log").write_text(f"printed by {key}\n")
    os.utime(run.path / "work/base/run.log", (1, 1))
    os.utime(run.path / "work/first/run.log", (2, 2))
    view = View(Folder())
    view.began(Session(tag="made", proposer="search", isolation="weak", experiments=4, folder=run.path))
    view.started(3, "a third idea")
    return run


def test_logs_of_an_experiment_are_found_by_its_number(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    published = project / "data/iterate/experiments/9/run.log"
    published.parent.mkdir(parents=True)
    published.write_text("published\n")
    with running_session(project):
        for number, said in ((0, "base"), (1, "first"), (3, "third")):
            runs.logs(f"iterate/{number}", count=5, follow=False, profile=None, overrides=[])
            assert capsys.readouterr().out == f"printed by {said}\n"
        runs.logs("iterate/9", count=5, follow=False, profile=None, overrides=[])
        assert capsys.readouterr().out == "published\n"
        with pytest.raises(InputError, match="iterate/2: has no log"):
            runs.logs("iterate/2", count=5, follow=False, profile=None, overrides=[])
        runs.logs("iterate", count=5, follow=False, profile=None, overrides=[])
        assert "training: a third idea" in capsys.readouterr().out


def test_status_and_watch_show_what_a_running_session_tries(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_session(project):
        runs.ls(as_json=False)
        told = capsys.readouterr().out
        assert "0 of 4" in told
        assert "tries a third idea" in told
        research.watch(None)
        told = capsys.readouterr().out
        assert "ratchet/made" in told
        assert "a third idea" in told
    with pytest.raises(InputError, match="which session"):
        research.watch(None)


def test_stop_of_a_session_in_a_copy_names_its_profile_and_overrides(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = project / copies.COPIES / "smoke+x"
    (copy / ".ratchet").mkdir(parents=True)
    (copy / copies.WISH).write_text(json.dumps({"profile": "smoke", "overrides": ["iterate.tag=a b"]}))
    with running_session(project) as run:
        monkeypatch.setattr(runs, "_folder_of", lambda pid: copy if pid == os.getpid() else project)
        runs.stop(None)
        told = capsys.readouterr().out
        assert f"next: ratchet resume iterate/{run.fingerprint} --profile smoke -S 'iterate.tag=a b'" in told
        assert run.stop_file.exists()
        monkeypatch.setattr(runs, "_folder_of", lambda pid: project)
        runs.stop(None)
        assert capsys.readouterr().out.endswith(f"next: ratchet resume iterate/{run.fingerprint}\n")


def test_folder_of_a_process_is_where_it_works(project: Path) -> None:
    assert runs._folder_of(os.getpid()) == project
    assert runs._folder_of(None) is not None
