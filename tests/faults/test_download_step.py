"""Stage prepare on a hub and a disk that fail: one line, the exit code, the shard named, no half output."""

from __future__ import annotations

import errno
import io
import json
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from download_hub import COMMIT, Fault, Hub

from ratchet.data.documents import ShardWriter, read_documents
from ratchet.settings import child_environment, settings
from steps.prepare import STAGE

PROJECT = Path(__file__).parents[2]
HELD_OUT, FIRST, SECOND = "shard_00009.parquet", "shard_00000.parquet", "shard_00001.parquet"
Run = Callable[..., tuple[int, list[str]]]
PARAMS: dict[str, Any] = {
    "source": "huggingface",
    "huggingface": {"repo": "me/texts", "shards": 2, "held_out_shard": 9},
}


def shard_of(texts: list[str | None], column: str = "text") -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table({column: texts}), buffer, compression="none")
    return buffer.getvalue()


@pytest.fixture
def hub() -> Iterator[Hub]:
    files = {
        HELD_OUT: shard_of([f"held {number}" for number in range(50)]),
        FIRST: shard_of([f"first {number} {'x' * 2000}" for number in range(200)]),
        SECOND: shard_of(["held 7", "first 3 " + "x" * 2000, None, *(f"second {number}" for number in range(50))]),
    }
    with Hub(files=files) as hub:
        yield hub


@pytest.fixture
def run_here(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Run]:
    """Runs the stage in this process on `hub`; returns its exit code and the lines of stderr."""

    def run(params: dict[str, Any] | None = None, **more: str) -> tuple[int, list[str]]:
        write_params(tmp_path, params or PARAMS)
        monkeypatch.chdir(tmp_path)
        for key, value in hub_environment(hub, **more).items():
            monkeypatch.setenv(key, value)
        settings.cache_clear()
        with pytest.raises(SystemExit) as ended:
            STAGE.main()
        assert isinstance(ended.value.code, int)
        return ended.value.code, capsys.readouterr().err.splitlines()

    yield run
    settings.cache_clear()


def write_params(project: Path, params: dict[str, Any]) -> None:
    (project / "params.yaml").write_text(yaml.safe_dump({"prepare": params}), encoding="utf-8")


def hub_environment(hub: Hub, **more: str) -> dict[str, str]:
    return {
        "RATCHET_HUB": hub.address,
        "RATCHET_DOWNLOAD_ATTEMPTS": "3",
        "RATCHET_DOWNLOAD_BACKOFF_S": "0.01",
        **more,
    }


def start(project: Path, hub: Hub, **more: str) -> subprocess.Popen[str]:
    """The stage as a process of its own."""
    write_params(project, PARAMS)
    environment = child_environment(PYTHONPATH=str(PROJECT), **hub_environment(hub, **more))
    command = [sys.executable, "-m", "steps.prepare"]
    return subprocess.Popen(
        command, cwd=project, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors.splitlines()


def outputs(project: Path) -> list[Path]:
    return [path for name in ("data", "metrics") for path in (project / name).rglob("*") if path.is_file()]


def test_step_on_a_hub_takes_validation_from_the_pinned_shard_and_trains_on_none_of_it(
    hub: Hub, tmp_path: Path
) -> None:
    code, _ = finish(start(tmp_path, hub))
    assert code == 0
    splits = {name: list(read_documents(tmp_path / "data/prepare" / name)) for name in ("train", "val", "test")}
    assert all(text.startswith("held") for name in ("val", "test") for text in splits[name])
    assert not any(text.startswith("held") for text in splits["train"])
    assert (len(splits["train"]), len(splits["val"]) + len(splits["test"])) == (250, 50)
    manifest = json.loads((tmp_path / "metrics/prepare.json").read_text(encoding="utf-8"))
    assert manifest["dropped"] | {"surrogates_replaced": 0} == {
        "empty": 1,
        "duplicates_within": 1,
        "duplicates_across": 1,
        "surrogates_replaced": 0,
    }
    assert manifest["origin"] == f"me/texts@{COMMIT}"
    assert [line.split()[1:] for line in manifest["files"]] == [
        [str(len(hub.files[name])), name] for name in (HELD_OUT, FIRST, SECOND)
    ]


def test_step_run_again_on_a_hub_fetches_nothing_and_gives_the_same_bytes(
    hub: Hub, tmp_path: Path, run_here: Run
) -> None:
    assert run_here()[0] == 0
    before = {path: path.read_bytes() for path in outputs(tmp_path)}
    hub.log.clear()
    shutil.rmtree(tmp_path / "data")
    assert run_here() == (0, [])
    assert hub.log == []
    assert {path: path.read_bytes() for path in outputs(tmp_path)} == before


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (Fault(status=503), "the server answered 503"),
        (Fault(drop_after=1000), "closed"),
        (Fault(short_by=10), "is offered with"),
        (Fault(flip_byte=5000), "has sha256"),
    ],
)
def test_step_on_a_hub_that_fails_names_the_shard_exits_3_and_leaves_no_output(
    hub: Hub, tmp_path: Path, run_here: Run, fault: Fault, says: str
) -> None:
    hub.faults[SECOND] = [fault] * 50
    code, lines = run_here()
    assert code == 3
    assert lines[-1].startswith(f"{SECOND}: ")
    assert says in lines[-1]
    assert lines[-1].count("; ") >= 1
    assert outputs(tmp_path) == []


def test_step_on_a_shard_without_the_column_names_it_exits_2_and_caches_nothing_of_it(
    hub: Hub, tmp_path: Path, run_here: Run
) -> None:
    hub.files[SECOND] = shard_of(["a"], column="body")
    code, lines = run_here()
    assert (code, lines[-1]) == (2, f"{SECOND}: has no column 'text'; its columns are body")
    assert outputs(tmp_path) == []
    hub.files[SECOND] = shard_of(["a"])
    assert run_here()[0] == 0


def test_step_with_a_pin_that_the_hub_breaks_names_the_key_and_exits_2(tmp_path: Path, run_here: Run) -> None:
    params = {**PARAMS, "huggingface": {**PARAMS["huggingface"], "sha256": {SECOND: "0" * 64}}}
    code, lines = run_here(params)
    assert code == 2
    assert lines[-1].startswith(f"prepare.huggingface.sha256.{SECOND}: {SECOND} has sha256 ")
    assert outputs(tmp_path) == []


@pytest.mark.slow
def test_step_killed_in_mid_download_continues_by_range_and_gives_the_unbroken_bytes(hub: Hub, tmp_path: Path) -> None:
    unbroken = tmp_path / "unbroken"
    killed = tmp_path / "killed"
    for project in (unbroken, killed):
        project.mkdir()
    assert finish(start(unbroken, hub))[0] == 0
    hub.stall, hub.faults[FIRST] = threading.Event(), [Fault(drop_after=200_000)]
    process = start(killed, hub)
    part = _wait_for_part(killed, 200_000)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    assert outputs(killed) == []
    hub.stall.set()
    hub.log.clear()
    assert finish(start(killed, hub))[0] == 0
    assert hub.asked(FIRST, "/bytes/")[0].headers["range"] == "bytes=200000-"
    assert not part.exists()
    for path in outputs(unbroken):
        assert (killed / path.relative_to(unbroken)).read_bytes() == path.read_bytes()


def _wait_for_part(project: Path, size: int) -> Path:
    """The half file once `size` bytes of it are written."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for part in (project / ".ratchet/downloads/parts").glob("*.part"):
            if part.stat().st_size == size:
                return part
        time.sleep(0.02)
    raise AssertionError("no half file appeared")


def test_step_never_writes_the_token_anywhere(hub: Hub, tmp_path: Path, run_here: Run) -> None:
    hub.token = "hf_secret"
    code, lines = run_here(HF_TOKEN="hf_secret")
    assert code == 0
    assert not any("hf_secret" in line for line in lines)
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        assert b"hf_secret" not in path.read_bytes()


@pytest.mark.parametrize("at", [1, 3])
def test_step_on_a_disk_that_fills_up_says_one_line_and_leaves_no_output(
    tmp_path: Path, run_here: Run, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    assert run_here()[0] == 0
    shutil.rmtree(tmp_path / "data")
    (tmp_path / "metrics/prepare.json").unlink()
    flush, calls = ShardWriter._flush, []

    def full(self: ShardWriter) -> None:
        calls.append(self)
        if len(calls) == at:
            raise OSError(errno.ENOSPC, "No space left on device", str(self.folder))
        flush(self)

    monkeypatch.setattr(ShardWriter, "_flush", full)
    code, lines = run_here()
    assert code == 2
    assert len(lines) == 1
    assert lines[0].startswith("prepare: the disk is full while writing ")
    assert outputs(tmp_path) == []


TINY_DISK = """
set -e
mkdir -p data metrics {folder}
mount -t tmpfs -o size=100k tmpfs {folder}
set +e
{python} -m steps.prepare
code=$?
find data metrics -type f
exit $code
"""


def _may_mount() -> bool:
    command = ["unshare", "--mount", "--map-root-user", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True).returncode == 0


def run_on_tiny_disk(project: Path, folder: str, **more: str) -> subprocess.CompletedProcess[str]:
    """The step as a process with `folder` on a file system of 100 kB; stdout then lists the files that it left."""
    return subprocess.run(
        [
            "unshare",
            "--mount",
            "--map-root-user",
            "sh",
            "-c",
            TINY_DISK.format(folder=folder, python=shlex.quote(sys.executable)),
        ],
        cwd=project,
        env=child_environment(PYTHONPATH=str(PROJECT), **more),
        capture_output=True,
        text=True,
        timeout=120,
    )


may_mount = pytest.mark.skipif(
    not _may_mount(), reason="this machine does not let a process mount a file system of its own"
)


@may_mount
@pytest.mark.slow
def test_step_whose_outputs_fill_a_real_disk_says_one_line_and_leaves_no_output(tmp_path: Path) -> None:
    params = yaml.safe_load((PROJECT / "params.yaml").read_text(encoding="utf-8"))["prepare"]
    params["package"]["corpus"] = "wiki-leads-smoke"
    write_params(tmp_path, params)
    done = run_on_tiny_disk(tmp_path, "data")
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("prepare: the disk is full while writing ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@may_mount
@pytest.mark.slow
def test_step_whose_downloads_fill_a_real_disk_says_so_and_leaves_no_output(hub: Hub, tmp_path: Path) -> None:
    write_params(tmp_path, PARAMS)
    done = run_on_tiny_disk(tmp_path, ".ratchet/downloads", **hub_environment(hub))
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].startswith("prepare: the disk is full while writing ")
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
