"""Checkpoints: commit order, every kind of damage, what is kept, and that saving touches no random generator."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from ratchet.core import atomic, checkpoint
from ratchet.core.checkpoint import Store, read_metadata
from ratchet.core.errors import InputError
from ratchet.core.fingerprint import digest


def writer(text: str) -> Any:
    return lambda path: path.write_text(text) and None


def filled(folder: Path, last: int = 3, **options: Any) -> Store:
    store = Store(folder, loop="toy", fingerprint="f00d", **options)
    for seq in range(1, last + 1):
        store.commit(
            seq, {"x": seq / 3}, {"a.bin": writer(f"blob {seq}"), "b.bin": writer("same")}, score=float(seq % 3)
        )
    return store


def again(folder: Path, **options: Any) -> Store:
    return Store(folder, loop="toy", fingerprint="f00d", **options)


def test_load_nothing_committed_is_none(tmp_path: Path) -> None:
    assert Store(tmp_path / "new").load() is None


def test_load_gives_the_last_committed_state_and_its_blobs(tmp_path: Path) -> None:
    filled(tmp_path)
    store = again(tmp_path)
    assert store.load() == (3, {"x": 1.0})
    assert store.blob("a.bin").read_text() == "blob 3"
    with pytest.raises(InputError, match=r"c\.bin: no such blob"):
        store.blob("c.bin")


def test_commit_keeps_the_last_two_and_no_temp(tmp_path: Path) -> None:
    filled(tmp_path, 5)
    assert sorted(item.name for item in (tmp_path / "checkpoints").iterdir()) == ["00000004", "00000005"]
    assert sorted(item.name for item in tmp_path.iterdir()) == ["HEAD", "checkpoints"]


def test_commit_keeps_the_best_by_score_and_the_earlier_of_two_equal(tmp_path: Path) -> None:
    assert filled(tmp_path, 8, keep_best=1).sequences() == [8, 7, 3]


def test_commit_damaged_old_checkpoint_is_nobodys_best_and_stops_nothing(tmp_path: Path) -> None:
    store = filled(tmp_path, 3, keep_best=1)
    (store.path(2) / "manifest.json").write_text("{}")
    store.commit(4, {}, {}, score=5.0)
    assert store.sequences() == [4, 3]


def test_commit_score_that_is_nan_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    store = filled(tmp_path, 2)
    with pytest.raises(InputError, match="cannot be kept as JSON"):
        store.commit(3, {}, {}, score=float("nan"))
    assert again(tmp_path).load() == (2, {"x": 2 / 3})
    assert not list((tmp_path / "checkpoints").glob(f".*{atomic.TEMP_MARK}*"))


def test_commit_that_does_not_go_forward_is_refused(tmp_path: Path) -> None:
    filled(tmp_path, 2)
    with pytest.raises(ValueError, match="checkpoint 2 does not follow 2"):
        again(tmp_path).commit(2, {}, {})


def test_commit_writer_that_fails_leaves_the_previous_checkpoint(tmp_path: Path) -> None:
    def full(path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    store = filled(tmp_path, 2)
    with pytest.raises(OSError, match="No space"):
        store.commit(3, {}, {"a.bin": full})
    assert again(tmp_path).load() == (2, {"x": 2 / 3})
    assert store.sequences() == [2, 1]


def test_commit_removes_the_old_one_only_after_the_new_one_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that loses the end of a file between its write and its rename."""
    store, publish = filled(tmp_path, 2, keep_last=1), atomic.publish_folder

    def lossy(temp: Path, path: Path) -> None:
        publish(temp, path)
        (path / "a.bin").write_bytes(b"")

    monkeypatch.setattr(atomic, "publish_folder", lossy)
    with pytest.raises(InputError, match=r"a\.bin: has 0 bytes"):
        store.commit(3, {}, {"a.bin": writer("new")})
    assert again(tmp_path).load() == (2, {"x": 2 / 3})


def damaged(folder: Path, kind: str) -> str:
    """Damage the newest checkpoint; the name that the refusal must give."""
    newest = folder / "checkpoints" / "00000003"
    blob, manifest, head = newest / "a.bin", newest / "manifest.json", folder / "HEAD"
    data = bytearray(blob.read_bytes())
    metadata = json.loads(manifest.read_text())
    match kind:
        case "flipped bit":
            data[2] ^= 4
            blob.write_bytes(data)
        case "truncated blob":
            blob.write_bytes(data[:-1])
        case "missing blob":
            blob.unlink()
        case "foreign file":
            (newest / "extra").write_text("who?")
            return "extra"
        case "truncated manifest":
            manifest.write_bytes(manifest.read_bytes()[:-9])
        case "newer format":
            body = {key: value for key, value in metadata.items() if key != "sha256"} | {"format": 2}
            manifest.write_text(atomic.json_line(body | {"sha256": digest(body)}, ""))
        case "another run's":
            other = folder / "other"
            Store(other, loop="toy", fingerprint="beef").commit(3, {}, {})
            manifest.write_bytes((other / "checkpoints" / "00000003" / "manifest.json").read_bytes())
        case "missing folder":
            newest.rename(folder / "moved")
        case "head":
            head.write_text("garbage")
        case "head of another":
            head.write_text(head.read_text().replace("3 ", "2 "))
    named = {"truncated manifest": manifest, "newer format": manifest, "missing folder": manifest, "head": head}
    return str(named.get(kind, newest if kind == "another run's" else "00000002" if "another" in kind else blob))


KINDS = ["flipped bit", "truncated blob", "missing blob", "foreign file", "truncated manifest", "newer format",
         "another run's", "missing folder", "head", "head of another"]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_load_damaged_newest_is_refused_with_its_path_and_auto_takes_the_newest_good(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(tmp_path, keep_last=3)
    path = damaged(tmp_path, kind)
    good = {"head": 3, "head of another": 1}.get(kind, 2)
    with pytest.raises(InputError) as caught:
        again(tmp_path).load()
    assert path in str(caught.value)
    assert f"{good:08d}" in caught.value.do
    assert "--resume auto" in caught.value.do
    store = again(tmp_path, resume="auto")
    assert store.load() == (good, {"x": good / 3})
    assert f"continuing from {store.path(good)}" in capsys.readouterr().err
    assert store.blob("a.bin").read_text() == f"blob {good}"


def test_load_every_single_flipped_bit_of_a_manifest_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.commit(1, {"x": 1e-05, "é": "É"}, {})
    manifest = store.path(1) / "manifest.json"
    whole = manifest.read_bytes()
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        manifest.write_bytes(data)
        with pytest.raises(InputError):
            store.verify(1)


def test_load_no_good_checkpoint_left_is_refused_even_with_auto(tmp_path: Path) -> None:
    filled(tmp_path)
    for blob in tmp_path.rglob("a.bin"):
        blob.write_bytes(b"")
    with pytest.raises(InputError, match="no good checkpoint is left"):
        again(tmp_path, resume="auto").load()


@pytest.mark.parametrize(("key", "theirs"), [("loop", {"fingerprint": "f00d"}), ("fingerprint", {"loop": "toy"})])
def test_load_whole_checkpoint_of_another_run_is_refused(tmp_path: Path, key: str, theirs: dict[str, str]) -> None:
    Store(tmp_path, **theirs).commit(1, {}, {})
    with pytest.raises(InputError, match=f"belongs to {key} '', not"):
        again(tmp_path).load()


def test_commit_after_auto_replaces_the_damaged_one(tmp_path: Path) -> None:
    filled(tmp_path)
    damaged(tmp_path, "flipped bit")
    store = again(tmp_path, resume="auto")
    store.load()
    store.commit(3, {"x": 9}, {})
    assert again(tmp_path).load() == (3, {"x": 9})


def test_load_sweeps_what_a_killed_writer_left_whoever_has_its_pid_now(tmp_path: Path) -> None:
    filled(tmp_path)
    stale = tmp_path / "checkpoints" / f".00000004{atomic.TEMP_MARK}{os.getppid()}"
    stale.mkdir()
    (stale / "a.bin").write_text("half")
    again(tmp_path).load()
    assert not stale.exists()


def test_labels_travel_in_the_checkpoint_and_come_back(tmp_path: Path) -> None:
    store = again(tmp_path, labels={"wandb": {"id": "abc", "project": "p", "entity": None}})
    store.commit(1, {}, {"big": writer("tensor")})
    (store.path(1) / "big").write_text("damage that reading the metadata must not notice")
    metadata = read_metadata(store.path(1))
    assert metadata["labels"]["wandb"]["id"] == "abc"
    assert (metadata["format"], metadata["loop"], metadata["fingerprint"], metadata["seq"]) == (1, "toy", "f00d", 1)
    (store.path(1) / "big").write_text("tensor")
    fresh = again(tmp_path)
    fresh.load()
    fresh.commit(2, {}, {})
    assert read_metadata(fresh.path(2))["labels"]["wandb"]["id"] == "abc"


def test_commit_unchanged_linked_blob_is_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    real = checkpoint.file_digest
    monkeypatch.setattr(checkpoint, "file_digest", lambda path: (hashed.append(path.name), real(path))[1])
    store = Store(tmp_path)
    store.commit(1, {}, {"frozen": writer("large")})
    for seq in (2, 3):
        store.commit(seq, {}, {"frozen": lambda path: path.hardlink_to(store.blob("frozen")), "new": writer(str(seq))})
    assert hashed == ["frozen", "new", "new"]
    assert store.blob("frozen").read_text() == "large"


def test_load_reads_every_byte_again_even_when_time_and_size_are_unchanged(tmp_path: Path) -> None:
    store = filled(tmp_path)
    blob = store.blob("a.bin")
    stat = blob.stat()
    blob.write_text("BLOB 3")
    os.utime(blob, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(InputError, match=r"a\.bin: does not match its sha256"):
        store.load()


def test_commit_remembers_no_hash_of_a_removed_file_whose_inode_may_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fast commits on a coarse clock: a new blob with the inode, size and mtime of one removed two commits ago."""
    monkeypatch.setattr(checkpoint, "_content_key", lambda file: (file.name, ord(file.read_text()[0]) % 3))
    store = Store(tmp_path)
    for seq in range(1, 9):
        store.commit(seq, {}, {"number": writer(str(seq))})
    monkeypatch.undo()
    assert Store(tmp_path).load() == (8, {})


def test_commit_advances_no_random_generator(tmp_path: Path) -> None:
    before = random.getstate()
    filled(tmp_path)
    again(tmp_path).load()
    assert random.getstate() == before


def test_keep_newest_good_never_removes_the_newest_good_one(tmp_path: Path) -> None:
    filled(tmp_path, 4, keep_last=4)
    (tmp_path / "checkpoints" / "00000004" / "a.bin").write_bytes(b"")
    again(tmp_path, keep_last=1).keep_newest_good()
    assert again(tmp_path, resume="auto").load() == (3, {"x": 1.0})
