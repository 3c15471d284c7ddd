"""The W&B mirror against W&B's own offline files, read back by W&B's own reader."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ratchet.core.checkpoint import read_metadata
from ratchet.settings import WANDB_SERVICE, Settings
from ratchet.tables.findings import Found, Severity
from ratchet.train import mirror as mirrors
from ratchet.train import progress
from ratchet.train.mirror import new_identity
from ratchet.train.training_mirror import TrainingMirror
from ratchet.train.wandb_files import history_steps, recorded_alerts, recorded_steps
from toy_training import in_child, launch, make_project
from wandb_files import inspected

SLOW = Found(Severity.NOTE, "slow", "from 9 to 3", "wait")
IDENTITY = {"id": "0a1b2c3d", "project": "toy", "entity": None}


def rows(first: int, last: int) -> list[dict[str, Any]]:
    columns = {"tokens": 64, "epoch": 0.5, "loss": 2.5, "lr_scale": 1.0, "grad_norm": None}
    return [{"step": step, **columns, "tokens_per_s": 10.0, "memory_mb": 1.0} for step in range(first, last + 1)]


def told(folder: Path) -> tuple[list[int], set[str]]:
    """(steps in the order they were logged, run ids) over all offline files."""
    steps, ids = [], set()
    for record in inspected(folder):
        if record["type"] == "history":
            assert record["history"]["item"]["train/step"] == record["history"]["step"]["num"]
            steps.append(record["history"]["step"]["num"])
        if record["type"] == "run":
            ids.add(record["run"]["run_id"])
    return steps, ids


def alerts(folder: Path) -> list[dict[str, Any]]:
    """Every alert in the offline files below `folder`, as W&B's own command reads them."""
    return [record["alert"] for record in inspected(folder) if record["type"] == "alert"]


def summarised(folder: Path) -> dict[str, Any]:
    """The summary that the same files come to."""
    told: dict[str, Any] = {}
    for record in inspected(folder):
        told |= record.get("summary", {}).get("update", {})
    return told


@pytest.mark.slow
def test_mirror_of_a_killed_and_resumed_training_holds_each_step_once_in_one_run(tmp_path: Path) -> None:
    """Real training, real SIGKILL: the rows committed before it, then the rest, under the id in the checkpoint; the
    learning rate's jump is an alert once, also when the finished run is opened again."""
    project = make_project(tmp_path / "project")
    with (project / "arena/train.py").open("a") as arena:
        arena.write("\n\ndef schedule(progress: float) -> float:\n    return 1.0 if progress < 0.45 else 0.2\n")
    where = tmp_path / "run"

    def killed() -> None:
        plain = progress.Watch.step

        def stepping(self: progress.Watch, row: Any, seconds: float) -> None:
            plain(self, row, seconds)
            if row["step"] == 7:
                time.sleep(2.0)  # longer than W&B's flush interval: what was sent before is on disk
                os.kill(os.getpid(), signal.SIGKILL)

        progress.Watch.step = stepping
        launch(project, where, settings={"wandb": "offline"})

    assert in_child(killed) == -signal.SIGKILL
    run = next((where / "runs/train").iterdir())
    assert told(run)[0] == [1, 2, 3, 4, 5, 6]
    assert alerts(run) == []
    assert in_child(lambda: launch(project, where, settings={"wandb": "offline"})) == 0
    steps, ids = told(run)
    defined = [record["metric"] for record in inspected(run) if record["type"] == "metric"]
    assert {"name": "train/step"}.items() <= defined[0].items()
    assert any(metric.get("glob_name") == "train/*" and metric["step_metric"] == "train/step" for metric in defined)
    assert steps == list(range(1, 11))
    metadata = read_metadata(max((run / "checkpoints").iterdir()))
    assert ids == {metadata["state"]["wandb"]["id"]} == {metadata["labels"]["wandb"]["id"]}
    assert metadata["state"]["wandb"]["project"] == "ratchet"
    jump = "its multiplier goes from 1 to 0.2 at step 6; compare it with the arena's schedule()"
    (alert,) = alerts(run)
    assert (alert["title"], alert["level"]) == ("train: the learning rate jumps", "WARN")
    assert alert["text"].startswith(jump)
    assert in_child(lambda: launch(project, where, settings={"wandb": "offline"})) == 0
    assert alerts(run) == [alert]
    summary = summarised(run)
    assert summary["train/alerts"] == 1
    assert summary["train/alert"]["the learning rate jumps"].startswith(jump)


@pytest.mark.slow
def test_mirror_sends_only_what_earlier_files_lack(tmp_path: Path) -> None:
    """A second process sends the whole record again: nothing twice, no gap, the step metric defined."""
    for upto in (3, 6):
        mirror = TrainingMirror("offline", tmp_path, {"seed": 1})
        mirror.send(IDENTITY, rows(1, upto))  # pyright: ignore[reportArgumentType]
        mirror.send(IDENTITY, rows(1, upto))  # pyright: ignore[reportArgumentType]
        mirror.close()
        time.sleep(1.1)  # W&B names the folder by the second
    assert told(tmp_path) == ([1, 2, 3, 4, 5, 6], {"0a1b2c3d"})
    assert recorded_steps(tmp_path, "0a1b2c3d") == {1, 2, 3, 4, 5, 6}
    metrics = [record["metric"] for record in inspected(tmp_path) if record["type"] == "metric"]
    assert any(metric.get("glob_name") == "train/*" and metric["step_metric"] == "train/step" for metric in metrics)


@pytest.mark.slow
def test_mirror_tells_a_finding_once_and_the_summary_its_present_numbers(tmp_path: Path) -> None:
    for evidence in ("from 9 to 3", "from 9 to 2"):
        mirror = TrainingMirror("offline", tmp_path, {})
        mirror.tell(lambda: [SLOW])  # before there is a run: nothing to show it in
        mirror.send(IDENTITY, rows(1, 3))  # pyright: ignore[reportArgumentType]
        for _ in ("once", "twice"):
            mirror.tell(lambda evidence=evidence: [SLOW._replace(evidence=evidence)])
        mirror.close()
        time.sleep(1.1)  # W&B names the folder by the second
    (alert,) = alerts(tmp_path)
    assert (alert["title"], alert["level"], alert["text"]) == ("train: slow", "INFO", "from 9 to 3; wait")
    assert summarised(tmp_path)["train/alert"] == {"slow": "from 9 to 2; wait"}
    assert recorded_alerts(tmp_path, "0a1b2c3d") == {"train: slow"}
    for folder in [*(tmp_path / "wandb").glob("offline-run-*")]:  # as a run that was online leaves it
        folder.rename(folder.with_name(folder.name.removeprefix("offline-")))
    assert recorded_alerts(tmp_path, "0a1b2c3d") == {"train: slow"}


def test_mirror_outlives_a_finding_that_cannot_be_made(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    mirror = TrainingMirror("offline", tmp_path, {})
    mirror._run = object()
    mirror.tell(lambda: [Found(*range(3))])  # type: ignore[arg-type]
    mirror.tell(lambda: [SLOW])
    assert capfd.readouterr().err.count("training goes on without its mirror") == 1


@pytest.mark.slow
def test_mirror_goes_on_after_a_kill_though_a_parent_handed_its_wandb_service_down(tmp_path: Path) -> None:
    """The parent's service lives on and would hold the killed run as in use."""
    parent = TrainingMirror("offline", tmp_path / "parent", {})
    parent.send({**IDENTITY, "id": "ffffffff"}, rows(1, 1))  # pyright: ignore[reportArgumentType]

    def killed() -> None:
        TrainingMirror("offline", tmp_path, {}).send(IDENTITY, rows(1, 3))  # pyright: ignore[reportArgumentType]
        os.kill(os.getpid(), signal.SIGKILL)

    def resumed() -> None:
        mirror = TrainingMirror("offline", tmp_path, {})
        mirror.send(IDENTITY, rows(1, 6))  # pyright: ignore[reportArgumentType]
        mirror.close()

    assert os.environ[WANDB_SERVICE].split("-")[1] == str(os.getpid())
    assert in_child(killed) == -signal.SIGKILL
    time.sleep(1.1)  # W&B names the folder by the second
    assert in_child(resumed) == 0
    parent.close()
    offline = [folder for folder in (tmp_path / "wandb").iterdir() if not folder.is_symlink()]
    assert sorted(step for folder in offline for step in told(folder)[0]) == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_mirror_offline_file_torn_anywhere_gives_the_steps_before_the_tear(tmp_path: Path) -> None:
    mirror = TrainingMirror("offline", tmp_path, {})
    mirror.send(IDENTITY, rows(1, 300))  # pyright: ignore[reportArgumentType]  (over several blocks of 32 KiB)
    mirror.close()
    assert recorded_steps(tmp_path, "0a1b2c3d") == set(range(1, 301))  # waits for W&B, which still writes a moment
    file = next(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    data = file.read_bytes()
    assert len(data) > 2 * 32 * 1024
    assert list(history_steps(file)) == told(tmp_path)[0] == list(range(1, 301))
    for size in (0, 5, 7, 20, 32 * 1024 - 3, 32 * 1024 + 3, len(data) // 2, len(data) - 1):
        file.write_bytes(data[:size])
        steps = list(history_steps(file))
        assert steps == list(range(1, len(steps) + 1))


@pytest.mark.slow
def test_mirror_online_without_key_or_network_goes_on_offline_and_says_so_once(tmp_path: Path) -> None:
    script = (
        "from pathlib import Path\n"
        "from ratchet.train.training_mirror import TrainingMirror\n"
        "row = dict.fromkeys('tokens epoch loss lr_scale grad_norm tokens_per_s memory_mb'.split(), 1.0)\n"
        "row['step'] = 1\n"
        "mirror = TrainingMirror('online', Path('.'), {})\n"
        "mirror.send({'id': '0a1b2c3d', 'project': 'toy', 'entity': None}, [row])\n"
        "mirror.send({'id': '0a1b2c3d', 'project': 'toy', 'entity': None}, [row | {'step': 2}])\n"
        "mirror.close()\n"
    )
    environment = {"PATH": os.defpath, "HOME": str(tmp_path), "WANDB_BASE_URL": "http://127.0.0.1:9"}
    for key in ({}, {"WANDB_API_KEY": "0" * 40}):
        folder = tmp_path / f"with {len(key)} keys"
        folder.mkdir()
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, cwd=folder, env=environment | key, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("going on offline") == 1
        assert told(folder)[0] == [1, 2]


def test_mirror_that_cannot_write_warns_once_and_stays_silent(tmp_path: Path, capfd: Any) -> None:
    """A file where the folder should be: what a full disk comes to, without filling one."""
    (tmp_path / "wandb").write_text("in the way")
    mirror = TrainingMirror("offline", tmp_path, {})
    mirror._start = lambda identity: (_ for _ in ()).throw(OSError(28, "No space left on device"))  # type: ignore[method-assign]
    for last in (1, 2, 3):
        mirror.send(IDENTITY, rows(1, last))  # pyright: ignore[reportArgumentType]
    mirror.close()
    assert capfd.readouterr().err.count("training goes on without its mirror") == 1


@pytest.mark.parametrize("trouble", ["hangs", "raises"])
def test_mirror_whose_end_takes_too_long_is_left_behind_with_one_warning(
    tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """The network dies while W&B uploads: it keeps its own limit (raises), or not even that (hangs)."""
    monkeypatch.setattr(mirrors, "FINISH_SECONDS", 0.2)
    monkeypatch.setattr(mirrors, "PATIENCE_SECONDS", 0.1)
    never = threading.Event()

    class Stuck:
        def log(self, *_: Any, **__: Any) -> None: ...

        def finish(self, exit_code: int) -> None:
            if trouble == "raises":
                raise TimeoutError("Timed out finishing run.")
            never.wait()

    mirror = TrainingMirror("online", tmp_path, {})
    mirror._start = lambda identity: Stuck()  # type: ignore[method-assign]
    mirror.send(IDENTITY, rows(1, 3))  # pyright: ignore[reportArgumentType]
    begun = time.monotonic()
    mirror.close()
    mirror.close()
    assert time.monotonic() - begun < 20
    assert capfd.readouterr().err.count("training goes on without its mirror") == 1
    never.set()


def test_mirror_gives_wandb_the_same_limit_for_what_it_does_at_exit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    seen: list[Any] = []

    class OpenedError(Exception): ...

    def init(**arguments: Any) -> Any:
        seen.append(arguments["settings"])
        raise OpenedError

    monkeypatch.setattr(wandb, "init", init)
    with pytest.raises(OpenedError):
        TrainingMirror("online", tmp_path, {})._open(IDENTITY, "online")  # pyright: ignore[reportArgumentType]
    assert (seen[0].finish_timeout, seen[0].finish_timeout_raises) == (mirrors.FINISH_SECONDS, True)


def test_mirror_disabled_imports_no_wandb_and_names_no_run(tmp_path: Path) -> None:
    assert new_identity(Settings(wandb="disabled")) is None
    script = (
        "import sys\nfrom pathlib import Path\nfrom ratchet.train.training_mirror import TrainingMirror\n"
        "mirror = TrainingMirror('disabled', Path('.'), {})\nmirror.send(None, [{'step': 1}])\nmirror.close()\n"
        "sys.exit('wandb' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=False).returncode == 0


def test_new_identity_comes_from_settings_and_is_new_each_time() -> None:
    settings = Settings(wandb="offline", wandb_project="p", wandb_entity="e")
    one, other = new_identity(settings), new_identity(settings)
    assert one is not None
    assert other is not None
    assert (one["project"], one["entity"]) == ("p", "e")
    assert one["id"] != other["id"]
