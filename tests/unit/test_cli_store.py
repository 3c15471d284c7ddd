"""`ratchet push` and `pull`: a folder as remote, a fresh clone that runs nothing, and what is refused, on one line."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import toy_artifacts as toy
from ratchet.cli import app
from ratchet.commands import store
from ratchet.core.errors import InfrastructureError, InputError
from ratchet.core.fingerprint import tree_digest


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.make(tmp_path_factory.mktemp("store") / "с пробелом ü")


@pytest.fixture
def project(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of its own of the project, entered; it has no remote."""
    return toy.enter_copy(made, tmp_path, monkeypatch)


def test_fresh_clone_pulls_every_output_and_the_report_and_runs_nothing(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy.add_remote(project, tmp_path / "remote")
    ran = CliRunner().invoke(app, ["push"])
    assert ran.exit_code == 0, ran.output
    assert "files to store (" in ran.stdout
    clone = tmp_path / "clone"
    toy.sh(tmp_path, "git", "clone", "-q", str(project), str(clone))
    assert not (clone / "data").exists()
    monkeypatch.chdir(clone)
    ran = CliRunner().invoke(app, ["pull"])
    assert ran.exit_code == 0, ran.output
    assert "next: ratchet report --open" in ran.stdout
    assert tree_digest(clone / "data") == tree_digest(project / "data")
    assert (clone / "data/plot/report.html").read_text() == "<p>v2</p>"
    assert "up to date" in toy.sh(clone, *toy.DVC, "status")
    toy.sh(clone, *toy.DVC, "repro")
    assert not (clone / toy.MARK).exists(), "a stage was run"


def test_push_again_says_that_nothing_is_to_do(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy.add_remote(project, tmp_path / "remote")
    for said in ("pushed 16 files", "nothing to push"):
        store.push([], remote=None)
        assert said in capsys.readouterr().out


def test_push_and_pull_of_a_stage_and_a_path_take_these_alone(project: Path, tmp_path: Path) -> None:
    toy.add_remote(project, tmp_path / "remote")
    store.push(["plot", "data/tokenizer"], remote=None)
    toy.forget(project)
    shutil.rmtree(project / "data")
    store.pull(["data/tokenizer", "plot"], remote=None)
    assert (project / "data/plot/report.html").is_file()
    assert (project / "data/tokenizer/tokenizer.json").is_file()
    with pytest.raises(InfrastructureError, match=r"^pull: the remote lacks .*; type `ratchet push` where they were"):
        store.pull(["train"], remote=None)


@pytest.mark.parametrize("verb", [store.push, store.pull])
def test_no_remote_says_how_to_add_a_folder_and_an_s3_store(project: Path, verb: object) -> None:
    with pytest.raises(InputError) as raised:
        verb([], remote=None)  # pyright: ignore[reportCallIssue]
    said = str(raised.value)
    assert "no remote is configured" in said
    assert "`dvc remote add -d store /path/to/folder`" in said
    assert "`dvc remote add -d store s3://BUCKET/PATH` after `pip install -c constraints-extras.txt -e '.[s3]'`" in said


def test_unknown_remote_is_one_line(project: Path) -> None:
    with pytest.raises(InputError, match=r"^push: .*nowhere.*; see `dvc remote list`"):
        store.push([], remote="nowhere")


def test_remote_is_chosen_by_name(project: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    toy.sh(project, *toy.DVC, "remote", "add", "-q", "other", str(tmp_path / "other"))
    store.push(["tokenizer"], remote="other")
    assert any((tmp_path / "other").rglob("*.dir"))


def test_target_that_is_none_names_the_nearest(project: Path, tmp_path: Path) -> None:
    toy.add_remote(project, tmp_path / "remote")
    with pytest.raises(InputError, match=r"^push: 'tokeniser' is no stage and no output; did you mean 'tokenizer'"):
        store.push(["tokeniser"], remote=None)


def test_store_whose_package_is_missing_gives_the_line_that_installs_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "dvc_s3", None)  # pyright: ignore[reportArgumentType]
    toy.sh(project, *toy.DVC, "remote", "add", "-q", "-d", "store", "s3://bucket/path")
    with pytest.raises(InputError) as raised:
        store.push([], remote=None)
    wanted = "pip install -c constraints-extras.txt -e '.[s3]'"
    assert str(raised.value).endswith(f"needs a package that is not installed; type `{wanted}`")


def test_client_that_is_no_extra_of_ours_is_installed_in_the_version_that_dvc_asks_for() -> None:
    assert re.fullmatch(r"pip install 'dvc-gs<\d+,>=[\d.]+'", store.install_line("gs"))
    assert store.install_line("what") == "pip install 'dvc[what]'"


@pytest.mark.parametrize("page", ["README.md", "docs/artifacts.md"])
def test_pages_have_the_line_that_installs_the_s3_client(page: str) -> None:
    assert store.install_line("s3") in (toy.ROOT / page).read_text(encoding="utf-8")


def test_pull_never_overwrites_work_that_is_in_no_cache(project: Path, tmp_path: Path) -> None:
    toy.add_remote(project, tmp_path / "remote")
    store.push([], remote=None)
    mine = project / "data/iterate/train.py"
    mine.unlink()
    mine.write_text("my own work\n")
    with pytest.raises(InputError, match=r"^pull: would overwrite work that is in no cache: .*iterate"):
        store.pull(["iterate"], remote=None)
    assert mine.read_text() == "my own work\n"


def test_error_of_a_stores_client_is_one_line_and_our_own_bug_is_not() -> None:
    client = type("EndpointConnectionError", (Exception,), {"__module__": "botocore.exceptions"})
    with (
        pytest.raises(InfrastructureError, match=r"^push: the remote answers: could not connect; mend it"),
        store.one_line_errors("push"),
    ):
        raise client("could not connect")
    with pytest.raises(ZeroDivisionError), store.one_line_errors("push"):
        raise ZeroDivisionError
