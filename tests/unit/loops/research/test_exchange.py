"""What travels to a machine that shares nothing with the session, and what such a machine refuses to do."""

from __future__ import annotations

import errno
import io
import json
import tarfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from dvc.exceptions import DownloadError

import ratchet
from ratchet.core.errors import InfrastructureError, InputError
from ratchet.core.fingerprint import import_closure
from ratchet.loops.research import exchange
from ratchet.loops.research.exchange import (
    TRAINED,
    Remote,
    ThroughRemote,
    _unpack,
    archive_of,
    arrived,
    bring,
    deliver,
    insistently,
    reached,
)
from ratchet.loops.research.executor import Experiment, Result, StoppedError, result_file
from ratchet.train.device import Device

HERE = Device("cpu", 0, "a processor", "AVX2", 1)


def job_in(project: Path) -> Experiment:
    for name in ("rows", "tokenizer", "split"):
        (project / name).mkdir(parents=True, exist_ok=True)
        (project / name / "content").write_text(name)
    train = {"horizon": {"unit": "steps", "value": 4}, "dtype": "float32"}
    return Experiment(
        key="k", number=1, what="a test", folder=project / "runs/k", source="", train=train, rows=project / "rows",
        tokenizer=project / "tokenizer", split=project / "split", judged_rows=None, batch_rows=1, judge_limit_s=1.0,
        seconds=1.0, memory_mb=1, processes=1, session="s",
    )  # fmt: skip


def test_archive_is_unpacked_with_what_says_whole_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tarfile.open(tmp_path / "trained.tar", "w") as archive:
        for name in ("trained/metrics.json", "trained/model/weights", "result-val.json", "run.log"):
            archive.addfile(tarfile.TarInfo(name))
    order: list[str] = []
    move = Path.replace

    def watched(self: Path, target: Path) -> Path:
        order.append(self.name)
        return move(self, target)

    monkeypatch.setattr(Path, "replace", watched)
    (tmp_path / "k").mkdir()
    _unpack(tmp_path / "trained.tar", tmp_path / "k")
    assert set(order[2:]) == {"metrics.json", "result-val.json"}
    assert sorted(path.name for path in (tmp_path / "k").iterdir()) == ["result-val.json", "run.log", "trained"]


def test_half_an_archive_is_one_line() -> None:
    with pytest.raises(InfrastructureError, match="experiments: the DVC remote fails: half"), reached():
        raise tarfile.ReadError("half")


NoCredentialsError = type("NoCredentialsError", (Exception,), {"__module__": "botocore.exceptions"})


class CutOff:
    """A remote that raises `error` so many `times`, then answers."""

    def __init__(self, error: Exception, times: int) -> None:
        self.error, self.times, self.asked = error, times, 0

    def __call__(self) -> str:
        self.asked += 1
        with reached():
            if self.asked <= self.times:
                raise self.error
            return "answer"


def test_remote_is_asked_again_while_it_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exchange, "AGAIN_S", 0.0)
    remote = CutOff(ConnectionError("no route"), 3)
    assert insistently(remote, 60.0) == "answer"
    assert remote.asked == 4
    assert capsys.readouterr().err == "experiments: the DVC remote fails: no route; asked again for 60 s\n"
    with pytest.raises(InfrastructureError, match="fails: no route"):
        insistently(CutOff(ConnectionError("no route"), 10**9), 0.05)


@pytest.mark.parametrize(
    "error",
    [FileNotFoundError("so"), PermissionError("so"), OSError(errno.ENOSPC, "so"), NoCredentialsError("so")],
    ids=lambda error: type(error).__name__,
)
def test_what_no_waiting_mends_is_told_at_once(error: Exception) -> None:
    remote = CutOff(error, 3)
    with pytest.raises(InfrastructureError, match=r"fails: .*so"):
        insistently(remote, 60.0)
    assert remote.asked == 1


def test_pull_that_a_cut_network_ends_is_asked_again_and_missing_data_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checkout(tmp_path / "here", tmp_path / "remote")
    asked = list[str]()

    def pull(self: object, targets: list[str]) -> None:
        asked.append(targets[0])
        raise DownloadError(1)

    class Away:
        @staticmethod
        def exists(place: str) -> bool:
            if len(asked) < 3:
                raise ConnectionError("no route")
            return False

    monkeypatch.setattr("dvc.repo.Repo.pull", pull)
    monkeypatch.setattr(Remote, "_place", (Away, "experiments"))
    monkeypatch.setattr(exchange, "AGAIN_S", 0.0)
    with pytest.raises(InfrastructureError, match=r"^dvc pull: missing: .*1 file"):
        insistently(lambda: bring(tmp_path / "here", tmp_path / "runs", {"missing": "a hash"}), 60.0)
    assert asked == ["missing"] * 3


def test_code_of_an_experiment_is_what_trains_and_judges_not_what_starts_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    package, starts = Path(ratchet.__file__).parent, list[Path]()
    monkeypatch.setattr(exchange, "closure_digest", lambda files, _: starts.extend(files) or "a digest")
    assert exchange.code_of_an_experiment.__wrapped__() == "a digest"
    files = {file for start in starts for file in import_closure(start, package.parent)}
    held = {file.relative_to(package).as_posix() for file in files}
    assert held >= {"train/trainer.py", "train/judge.py", "train/logits_server.py", "data/loader.py", "train/ranks.py"}
    assert not held & {"train/launch.py", "train/experiment_job.py", "train/mirror.py"}


def test_session_that_is_stopped_waits_for_no_remote() -> None:
    stopping = threading.Event()
    stopping.set()
    with pytest.raises(StoppedError):
        insistently(CutOff(ConnectionError("no route"), 10**9), 60.0, stopping)


def test_job_arrives_in_another_checkout_with_the_paths_of_that_one(tmp_path: Path) -> None:
    asked = job_in(tmp_path / "here")
    there = tmp_path / "there"
    job_in(there)
    (there / "runs/experiments/s/k/trained").mkdir(parents=True)
    (there / "runs/experiments/s/k/trained/metrics.json").write_text("{}")
    told = ThroughRemote(tmp_path / "here", HERE).parameters(asked)
    assert str(tmp_path) not in str(told)
    got = arrived(told["job"], told["away"], HERE, there, there / "runs")
    assert got == replace(
        asked, folder=there / "runs/experiments/s/k", rows=there / "rows", tokenizer=there / "tokenizer",
        split=there / "split",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (replace(HERE, threads=2), r"device\.threads 1 → 2"),
        (replace(HERE, capability="AVX512"), r"device\.capability 'AVX2' → 'AVX512'"),
        (replace(HERE, ranks=2), r"device\.ranks '\(absent\)' → 2"),
    ],
)
def test_machine_that_would_give_other_bytes_refuses(tmp_path: Path, other: Device, named: str) -> None:
    told = ThroughRemote(tmp_path, HERE).parameters(job_in(tmp_path))
    with pytest.raises(InputError, match=named):
        arrived(told["job"], told["away"], other, tmp_path, tmp_path / "runs")


def test_code_of_another_version_is_refused(tmp_path: Path) -> None:
    told = ThroughRemote(tmp_path, HERE).parameters(job_in(tmp_path))
    with pytest.raises(InputError, match="code 'older'"):
        arrived(told["job"], {**told["away"], "code": "older"}, HERE, tmp_path, tmp_path / "runs")


def test_data_that_is_not_the_sessions_is_refused(tmp_path: Path) -> None:
    told = ThroughRemote(tmp_path, HERE).parameters(job_in(tmp_path))
    (tmp_path / "rows/content").write_text("other rows")
    with pytest.raises(InputError, match="rows: is not the session's data"):
        bring(tmp_path, tmp_path / "runs", told["away"]["data"])


def test_data_outside_the_project_cannot_travel(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not below"):
        ThroughRemote(tmp_path / "project", HERE).parameters(job_in(tmp_path / "elsewhere"))


def checkout(folder: Path, remote: Path) -> Experiment:
    """A job in a project whose DVC remote is the folder `remote`."""
    (folder / ".dvc").mkdir(parents=True)
    config = f"[core]\n    remote = store\n    no_scm = true\n['remote \"store\"']\n    url = {remote}\n"
    (folder / ".dvc/config").write_text(config)
    return job_in(folder)


def leave(job: Experiment) -> None:
    """What a training and its judging leave in the folder of `job`."""
    (job.folder / "trained/model").mkdir(parents=True)
    for name in ("trained/metrics.json", "trained/model/weights", "trained/history.tsv", "run.log", "secret"):
        (job.folder / name).write_text(name)
    (job.folder / f"judged-{job.split.name}.parquet").write_text("judged")
    result_file(job).write_text(json.dumps(Result(val_bpb=1.5, reason="", isolation="weak").as_json()))


def test_training_that_was_sent_is_there_for_a_second_checkout_and_its_result_for_the_session(tmp_path: Path) -> None:
    here, there, session = (checkout(tmp_path / name, tmp_path / "remote") for name in ("here", "there", "session"))
    leave(here)
    deliver(here, tmp_path / "here")
    told = ThroughRemote(tmp_path / "there", HERE).parameters(there)
    got = arrived(told["job"], told["away"], HERE, tmp_path / "there", tmp_path / "there/runs")
    files = sorted(path.name for path in (got.folder / "trained").rglob("*") if path.is_file())
    assert files == ["history.tsv", "metrics.json", "weights"]
    carrier = ThroughRemote(tmp_path / "session", HERE)
    assert (received := carrier.received(session)) is not None
    assert received.val_bpb == 1.5
    assert sorted(path.name for path in session.folder.rglob("*") if path.is_file()) == [
        "history.tsv", "judged-split.parquet", result_file(session).name, "run.log"]  # fmt: skip
    assert carrier.received(replace(session, key="other", folder=tmp_path / "other")) is None


def test_result_on_the_test_split_comes_without_the_training_that_is_there_already(tmp_path: Path) -> None:
    job = replace(checkout(tmp_path / "here", tmp_path / "remote"), split=tmp_path / "here/test")
    leave(job)
    deliver(job, tmp_path / "here")
    assert [path.name for path in (tmp_path / "remote/experiments/s/k").iterdir()] == [archive_of(job)]


def test_archive_that_would_write_outside_its_folder_is_refused_in_one_line(tmp_path: Path) -> None:
    job = checkout(tmp_path / "here", tmp_path / "remote")
    (at := tmp_path / "remote/experiments/s/k").mkdir(parents=True)
    with tarfile.open(at / TRAINED, "w") as archive:
        (member := tarfile.TarInfo("../outside")).size = 3
        archive.addfile(member, io.BytesIO(b"bad"))
    with pytest.raises(InfrastructureError, match=r"^experiments: the DVC remote fails: .*\.\./outside"):
        Remote(tmp_path / "here").fetch(job, TRAINED)
    assert not list(tmp_path.rglob("outside"))
    assert list(job.folder.iterdir()) == []
