"""Checkpoints: JSON state plus named blobs, committed by the atomic replacement of one small file.

`HEAD` names the committed one of `checkpoints/<seq>/`; each holds `manifest.json` (identity, state, the size and sha256
of every blob) and its blobs. Refuses to know what a blob holds; no pickle, no random generator is touched.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from ratchet.core import atomic
from ratchet.core.errors import InputError
from ratchet.core.fingerprint import digest, file_digest

FORMAT = 1
MANIFEST = "manifest.json"
RESTORE = "restore it or use another checkpoint"
Blobs = Mapping[str, Callable[[Path], None]]
"""Name → writer of one file at the path it is given."""
Resume = Literal["newest", "auto"]
"""`newest`: the committed checkpoint or a refusal. `auto`: the newest good one, said on stderr."""


def read_metadata(path: Path) -> dict[str, Any]:
    """The manifest of the checkpoint folder `path`, without reading its blobs.

    Keys: format, loop, fingerprint, seq, score, labels (W&B identity and the like), state, blobs, sha256.
    Raises InputError when it is missing, not ours, changed by a bit, or of a newer format.
    """
    file = path / MANIFEST
    try:
        raw = file.read_bytes()
        metadata: Any = json.loads(raw)
        version = metadata["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(file, f"no checkpoint manifest ({error})", RESTORE) from None
    if version != FORMAT:
        raise InputError(file, f"has format {version!r}, this Ratchet reads {FORMAT}", "use the Ratchet that wrote it")
    body = {key: value for key, value in metadata.items() if key != "sha256"}
    if metadata.get("sha256") != digest(body) or atomic.json_line(metadata, file).encode() != raw:
        raise InputError(file, "does not match its own sha256", RESTORE)
    return metadata


class Store:
    """The checkpoints of one run under `folder`. Not for two writers: the run directory's lock sees to that.

    `labels` travel in every checkpoint and come back on load; `loop` and `fingerprint` must match on load.
    `before_commit`: what must be on disk before the next commit counts; each is called once.
    """

    def __init__(
        self, folder: Path, keep_last: int = 2, *, keep_best: int = 0, resume: Resume = "newest",
        loop: str = "", fingerprint: str = "", labels: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.folder, self.checkpoints, self.head_file = folder, folder / "checkpoints", folder / "HEAD"
        self.keep_last, self.keep_best, self.resume = max(1, keep_last), keep_best, resume
        self.loop, self.fingerprint = loop, fingerprint
        self.labels: dict[str, Any] = dict(labels or {})
        self.seq: int | None = None
        self._known: dict[tuple[int, ...], str] = {}
        self.before_commit: list[Callable[[], object]] = []

    def path(self, seq: int) -> Path:
        """The folder of checkpoint `seq`."""
        return self.checkpoints / f"{seq:08d}"

    def sequences(self) -> list[int]:
        """Every checkpoint on disk, committed or not, newest first."""
        names = [item.name for item in self.checkpoints.iterdir()] if self.checkpoints.is_dir() else []
        return sorted((int(name) for name in names if name.isdecimal()), reverse=True)

    def blob(self, name: str) -> Path:
        """The file of blob `name` in the checkpoint loaded or committed last. Raises InputError when there is none."""
        path = self.path(self.seq or 0) / name
        if not path.is_file():
            raise InputError(path, "no such blob", "start the run again")
        return path

    def load(self) -> tuple[int, dict[str, Any]] | None:
        """(seq, state) of the committed checkpoint with all its blobs verified; None when nothing was committed.

        Raises InputError naming the damaged file; it offers the newest good checkpoint, which `auto` takes.
        """
        for folder in (self.folder, self.checkpoints):
            atomic.sweep(folder, alone=True)
        self._known.clear()
        good, damage = self.newest_good()
        if damage and not good:
            raise InputError(damage.where, damage.what, "no good checkpoint is left: remove the run and start again")
        if damage and good and self.resume != "auto":
            do = f"continue from the newest good one, {self.path(good['seq'])}, by --resume auto (RATCHET_RESUME=auto)"
            raise InputError(damage.where, damage.what, do)
        if damage and good:
            told = f"{damage.where}: {damage.what}; continuing from {self.path(good['seq'])}"
            print(told, file=sys.stderr, flush=True)
        self.seq = 0
        if good:
            self._make_head(good)  # completes a commit that a kill cut off before HEAD, or before the old ones went
        self.labels = (good["labels"] if good else {}) | self.labels
        return (good["seq"], good["state"]) if good else None

    def newest_good(self) -> tuple[dict[str, Any] | None, InputError | None]:
        """The metadata of the newest verified checkpoint not after HEAD, and what is wrong with what came before it."""
        damage = head = None
        try:
            head = self.head()
        except InputError as error:
            damage = error
        found = self.sequences()
        for seq in [head[0], *(seq for seq in found if seq < head[0])] if head else found:
            try:
                return self.verify(seq, head[1] if head and seq == head[0] else None), damage
            except InputError as error:
                damage = damage or error
        return None, damage

    def head(self) -> tuple[int, str] | None:
        """(seq, sha256 of its manifest) that HEAD commits; None without a HEAD. Raises InputError for a bad one."""
        try:
            words = self.head_file.read_text(encoding="ascii").split(" ")
            return int(words[0]), words[1]
        except FileNotFoundError:
            return None  # killed before the first commit ended: a checkpoint that is there is complete all the same
        except (ValueError, IndexError):
            raise InputError(self.head_file, "names no checkpoint", "restore it or remove it") from None

    def commit(self, seq: int, state: Mapping[str, Any], blobs: Blobs, *, score: float | None = None) -> None:
        """Make `state` and `blobs` the checkpoint `seq`: durable and verified first, then HEAD, then the old ones go.

        A writer may hard-link an unchanged blob from `blob(name)`: it is not hashed again. Raises InputError when the
        state is no JSON, ValueError when `seq` does not go forward.
        """
        if self.seq is None:
            self.load()
        if seq <= (self.seq or 0):
            raise ValueError(f"checkpoint {seq} does not follow {self.seq}")
        files = self.path(self.seq or 0).glob("*")  # an inode that is in use cannot be another file's by now
        self._known = {key: self._known[key] for file in files if (key := _content_key(file)) in self._known}
        while self.before_commit:
            self.before_commit.pop()()
        with atomic.output_folder(self.path(seq)) as temp:
            for name, write in blobs.items():
                write(temp / name)
            entries = {
                name: {"bytes": (temp / name).stat().st_size, "sha256": self._hash(temp / name)} for name in blobs
            }
            body: dict[str, Any] = {
                "format": FORMAT, "loop": self.loop, "fingerprint": self.fingerprint, "seq": seq, "score": score,
                "labels": self.labels, "state": state, "blobs": entries,
            }  # fmt: skip
            body = atomic.plain(body, temp / MANIFEST)
            atomic.write_text(temp / MANIFEST, atomic.json_line(body | {"sha256": digest(body)}, temp / MANIFEST))
        self._make_head(self.verify(seq))

    def _make_head(self, metadata: Mapping[str, Any]) -> None:
        """The commit point. What is no longer kept goes after it."""
        self.seq = metadata["seq"]
        atomic.write_text(self.head_file, f"{self.seq} {metadata['sha256']}")
        self.prune(metadata["seq"])

    def verify(self, seq: int, sha256: str | None = None, *, hashes: bool = True) -> dict[str, Any]:
        """The metadata of checkpoint `seq` after reading all of it (without `hashes`: blobs by their size alone).

        Raises InputError naming what is wrong.
        """
        path = self.path(seq)
        metadata = read_metadata(path)
        if sha256 not in (None, metadata["sha256"]):
            raise InputError(path, f"is not the checkpoint {sha256!r} that HEAD names", "restore it")
        for key, ours in (("loop", self.loop), ("fingerprint", self.fingerprint), ("seq", seq)):
            if ours != "" and metadata[key] != ours:
                raise InputError(path, f"belongs to {key} {metadata[key]!r}, not {ours!r}", "use this run's own files")
        if foreign := {item.name for item in path.iterdir()} - {MANIFEST, *metadata["blobs"]}:
            raise InputError(path / min(foreign), "is not in the manifest", "remove it")
        for name, entry in metadata["blobs"].items():
            file = path / name
            if not file.is_file() or file.stat().st_size != entry["bytes"]:
                size = file.stat().st_size if file.is_file() else None
                raise InputError(file, f"has {size} bytes, not {entry['bytes']}", RESTORE)
            if hashes and self._hash(file) != entry["sha256"]:
                raise InputError(file, "does not match its sha256", RESTORE)
        return metadata

    def _hash(self, file: Path) -> str:
        """sha256 of `file`, read once since `load`."""
        key = _content_key(file)
        if key not in self._known:
            self._known[key] = file_digest(file)
        return self._known[key]

    def prune(self, head: int) -> list[Path]:
        """Keep `head`, the newest before it, and the best by score; what is newer than `head` was never committed."""
        older = [seq for seq in self.sequences() if seq <= head]
        kept = {*older[: self.keep_last], *(self._best(older) if self.keep_best else ())}
        removed = [self.path(seq) for seq in self.sequences() if seq not in kept]
        for path in removed:
            atomic.remove_folder(path)
        return removed

    def keep_newest_good(self) -> list[Path]:
        """Remove all checkpoints but the newest good one, and return them; none when none is good."""
        good, _ = self.newest_good()
        return self.prune(good["seq"]) if good else []

    def _best(self, sequences: list[int]) -> list[int]:
        scores: list[tuple[float, int]] = []
        for seq in sequences:
            with suppress(InputError):  # a damaged one is nobody's best
                scores += [(score, seq)] if (score := read_metadata(self.path(seq))["score"]) is not None else []
        return [seq for _, seq in sorted(scores)[: self.keep_best]]


def _content_key(file: Path) -> tuple[int, ...]:
    """What a rename and a hard link leave as it is, and a write changes."""
    stat = file.stat()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns
