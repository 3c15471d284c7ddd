"""`ratchet push`, `pull` and `get`, and plain `dvc pull`, against an S3 store that listens on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer
from typer.testing import CliRunner

import toy_artifacts as toy
from ratchet.cli import app
from ratchet.commands.store import push
from ratchet.core.errors import InfrastructureError
from ratchet.core.fingerprint import tree_digest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

BUCKET = "outputs"


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    """The address of an empty S3 store on a free port; it is gone afterwards."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.make(tmp_path_factory.mktemp("s3") / "made")


@pytest.fixture
def project(made: Path, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the project, entered, whose default remote is a bucket of `store`; keys come from the environment."""
    (tmp_path / "aws").touch()
    for name, value in {"AWS_ACCESS_KEY_ID": "toy", "AWS_SECRET_ACCESS_KEY": "toy", "AWS_DEFAULT_REGION": "us-east-1",
                        "AWS_CONFIG_FILE": str(tmp_path / "aws"), "AWS_MAX_ATTEMPTS": "1"}.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    root = toy.enter_copy(made, tmp_path, monkeypatch)
    empty_bucket(store)
    toy.add_s3_remote(root, f"s3://{BUCKET}/toy", store)
    return root


def empty_bucket(store: str) -> None:
    """A bucket without what the test before has left in it."""
    bucket = boto3.resource("s3", endpoint_url=store).Bucket(BUCKET)
    bucket.create()
    bucket.objects.all().delete()


def run(*arguments: str) -> str:
    """What `ratchet` prints when it succeeds."""
    ran = CliRunner().invoke(app, list(arguments))
    assert ran.exit_code == 0, ran.output or ran.exception
    return ran.stdout


def clone_of(project: Path, name: str) -> Path:
    """A fresh clone beside the project: git's files, none of DVC's."""
    toy.sh(project.parent, "git", "clone", "-q", str(project), name)
    assert not (project.parent / name / "data").exists()
    return project.parent / name


def test_fresh_clones_have_every_output_from_s3_by_ratchet_pull_or_dvc_pull_and_run_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert f"to store (s3://{BUCKET}/toy)" in run("push")
    assert "nothing to push" in run("push")
    clone, plain = clone_of(project, "clone ü"), clone_of(project, "plain")
    monkeypatch.chdir(clone)
    assert "next: ratchet status" in run("pull")
    toy.sh(plain, *toy.DVC, "pull", "-q")
    for pulled in (clone, plain):
        assert tree_digest(pulled / "data") == tree_digest(project / "data")
        assert (pulled / "data/plot/report.html").read_text() == "<p>v2</p>"
        toy.sh(pulled, *toy.DVC, "repro", "-q")
        assert not (pulled / toy.MARK).exists(), "a stage was run"


def test_model_of_an_older_version_is_fetched_by_name_from_s3_alone(project: Path) -> None:
    (project / ".dvc/config.local").write_text((project / ".dvc/config").read_text())
    toy.sh(project, "git", "checkout", "-q", "v1")
    run("push")
    toy.sh(project, "git", "checkout", "-q", "main")
    toy.forget(project)
    run("get", "model@v1")
    assert (project / "artifacts/model@v1/arena.py").read_text().endswith(toy.TAIL["v1"])


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [("url", "s3://nowhere/toy", "bucket does not exist"), ("endpointurl", "http://127.0.0.1:9", "127.0.0.1:9")],
)
def test_store_that_answers_no_or_not_at_all_is_one_line(project: Path, key: str, value: str, why: str) -> None:
    toy.sh(project, *toy.DVC, "remote", "modify", "-q", "store", key, value)
    with pytest.raises(InfrastructureError, match=f"^push: .*{why}.*; mend .*, and type it again$"):
        push([], remote=None)
