"""A packed split: documents as rows of `sequence_len + 1` ids in a memory-mapped file, with a manifest.

Writes and reads that folder. Refuses to know where texts come from, how rows are chosen (row_plan.py) and in which
order they are read (loader.py).

    manifest.json    what the rows are and how well they are filled; the size of every other file
    rows.npy         uint16 or uint32 [rows, sequence_len + 1]: ids; targets of position t are the ids in slot t + 1
    pieces.npy       int64 [4, pieces]: document, row, start, stop; only where rows are padded (validation, test)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ratchet.core import atomic
from ratchet.core.errors import InputError
from ratchet.data.encoding import encode_split, id_type
from ratchet.data.row_plan import PADDING, Gaps, Plan, plan_rows
from ratchet.data.tokenizer import Tokenizer

FORMAT, VERSION = "ratchet-pack", 1
SLOTS_AT_ONCE = 1 << 22
AGAIN = "run `dvc repro pack` again"

Ids = npt.NDArray[np.unsignedinteger]


class Pieces(NamedTuple):
    """Where documents lie, in row order: the targets of `row` at positions `start` to `stop` belong to `document`.

    int64 arrays [pieces]. Every target of every document is in exactly one piece; a BOS is in none.
    """

    document: npt.NDArray[np.int64]
    row: npt.NDArray[np.int64]
    start: npt.NDArray[np.int64]
    stop: npt.NDArray[np.int64]


@dataclass(frozen=True)
class PackedSplit:
    """A split ready to be read. `rows`: read-only map [R, sequence_len + 1]; `pieces`: None for training rows."""

    folder: Path
    manifest: dict[str, Any]
    rows: Ids
    pieces: Pieces | None

    @property
    def sequence_len(self) -> int:
        return self.manifest["sequence_len"]

    @property
    def vocab_size(self) -> int:
        return self.manifest["vocab_size"]

    @classmethod
    def load(cls, folder: Path) -> PackedSplit:
        """Map the split in `folder`. Raises InputError when a file is missing, truncated, or from another version."""
        folder = Path(folder)
        manifest = _read_manifest(folder / "manifest.json")
        for name, size in manifest["files"].items():
            _check_size(folder / name, size)
        rows = _map(
            folder / "rows.npy", (manifest["rows"], manifest["sequence_len"] + 1), id_type(manifest["vocab_size"])
        )
        pieces = None
        if "pieces.npy" in manifest["files"]:
            pieces = Pieces(*_map(folder / "pieces.npy", (4, manifest["pieces"]), np.dtype(np.int64)))
        return cls(folder, manifest, rows, pieces)


def pack_split(
    texts: Iterable[str],
    tokenizer_folder: Path,
    folder: Path,
    *,
    sequence_len: int,
    gaps: Gaps,
    where: object,
    workers: int | None = None,
) -> dict[str, Any]:
    """Encode and pack `texts` into `folder`, which exists; returns the manifest. Deterministic for any `workers`.

    Memory: 36 bytes per document and a few MB; ids go through a temporary file. `where` heads an error. Raises
    InputError when there is no document, one is empty, or training documents do not fill a single row.
    """
    tokenizer = Tokenizer.load(tokenizer_folder)
    spool = folder / "ids.tmp"
    sizes, text_bytes = _spool_ids(encode_split(texts, tokenizer, workers=workers), spool, where)
    plan = plan_rows(sizes, sequence_len + 1, gaps)
    if plan.rows == 0:
        what = f"its {int(sizes.sum())} ids do not fill one row of sequence_len + 1 = {sequence_len + 1}"
        raise InputError(where, what, "lower pack.sequence_len or give more text")
    ids = np.memmap(spool, dtype=id_type(tokenizer.vocab_size), mode="r")
    _write_rows(folder / "rows.npy", plan, ids, sizes, sequence_len + 1, tokenizer.pad)
    spool.unlink()
    figures = _figures(plan, sizes, text_bytes, sequence_len)
    if gaps is Gaps.PAD:
        pieces = _pieces(plan, sequence_len + 1)
        np.save(folder / "pieces.npy", np.stack(pieces), allow_pickle=False)
        figures["pieces"] = len(pieces.row)
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "sequence_len": sequence_len,
        "vocab_size": tokenizer.vocab_size,
        **figures,
        "files": {path.name: path.stat().st_size for path in sorted(folder.glob("*.npy"))},
    }
    atomic.write_json(folder / "manifest.json", manifest)
    return manifest


def _spool_ids(batches: Iterator[Any], spool: Path, where: object) -> tuple[npt.NDArray[np.uint32], int]:
    """Write every batch's ids to `spool`; the size of each document in ids with its BOS, and the bytes of all."""
    sizes: list[npt.NDArray[np.uint32]] = []
    text_bytes = done = 0
    with spool.open("wb") as file:
        for batch in batches:
            if (empty := np.flatnonzero(batch.sizes == 1)).size:
                what = f"document {done + int(empty[0])} has no text"
                raise InputError(where, what, "leave empty documents out: `dvc repro prepare` does")
            file.write(batch.ids.data)
            sizes.append(batch.sizes)
            text_bytes += batch.bytes
            done += len(batch.sizes)
    if not done:
        raise InputError(
            where, "holds no documents", "give the prepare stage more text, or a larger share to this split"
        )
    return np.concatenate(sizes), text_bytes


def _write_rows(path: Path, plan: Plan, ids: Ids, sizes: npt.NDArray[np.uint32], row_slots: int, pad: int) -> None:
    """Gather the pieces into `path`. Written, not mapped: a full disk under a map is a SIGBUS, here an OSError."""
    offsets = np.cumsum(sizes, dtype=np.int64) - sizes
    header = {"descr": np.lib.format.dtype_to_descr(ids.dtype), "fortran_order": False, "shape": (plan.rows, row_slots)}
    at_once = max(1, SLOTS_AT_ONCE // row_slots)
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for first in range(0, len(plan.size), at_once):
            document, start, size = (column[first : first + at_once] for column in plan[:3])
            real = document != PADDING
            begin = np.zeros(len(size), dtype=np.int64)
            begin[real] = offsets[document[real]] + start[real]
            slot = np.arange(size.sum(), dtype=np.int64)
            source = slot + np.repeat(begin - (np.cumsum(size, dtype=np.int64) - size), size)
            source[np.repeat(~real, size)] = 0
            chunk = ids[source]
            chunk[np.repeat(~real, size)] = pad
            file.write(chunk.data)


def _pieces(plan: Plan, row_slots: int) -> Pieces:
    """The plan in target positions: a piece's first slot, its BOS or the id it overlaps by, is no target of it."""
    slot = np.cumsum(plan.size, dtype=np.int64) - plan.size
    row, start = np.divmod(slot, row_slots)
    keep = plan.document != PADDING
    stop = start + plan.size.astype(np.int64) - 1
    return Pieces(plan.document[keep].astype(np.int64), row[keep], start[keep], stop[keep])


def _figures(plan: Plan, sizes: npt.NDArray[np.uint32], text_bytes: int, sequence_len: int) -> dict[str, Any]:
    """What a person wants to know of a split; `docs/packing.md` defines each."""
    documents, tokens = len(sizes), int(sizes.sum(dtype=np.int64)) - len(sizes)
    slots = plan.rows * (sequence_len + 1)
    padding = int(plan.size[plan.document == PADDING].sum(dtype=np.int64))
    return {
        "rows": plan.rows,
        "documents": documents,
        "bytes": text_bytes,
        "tokens": tokens,
        "bytes_per_token": text_bytes / tokens,
        "utilisation": 1 - padding / slots,
        "padding_slots": padding,
        "longer_documents": int((sizes > sequence_len + 1).sum()),
        "continued_documents": plan.cut,
        "continued_share": plan.cut / documents,
        "lost_tokens": plan.lost,
        "lost_share": plan.lost / tokens,
    }


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(path, "no such file", "run the stage that makes it: `dvc repro pack`") from None
    except ValueError as error:
        raise InputError(path, f"is no JSON: {error}", AGAIN) from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise InputError(path, f"is no {FORMAT} manifest", "point to a folder that the pack stage has made")
    if manifest.get("version") != VERSION:
        raise InputError(path, f"has version {manifest.get('version')!r}, this ratchet reads {VERSION}", AGAIN)
    if missing := [key for key in ("rows", "sequence_len", "vocab_size", "files") if key not in manifest]:
        raise InputError(path, f"lacks {', '.join(missing)}", AGAIN)
    return manifest


def _check_size(path: Path, expected: int) -> None:
    if not path.exists():
        raise InputError(path, "no such file", AGAIN)
    if (found := path.stat().st_size) != expected:
        raise InputError(path, f"holds {found} bytes, its manifest says {expected}", AGAIN)


def _map(path: Path, shape: tuple[int, int], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise InputError(path, f"is no .npy file: {error}", AGAIN) from None
    if array.shape != shape or array.dtype != dtype:
        what = f"holds {array.dtype} {list(array.shape)}, its manifest says {dtype} {list(shape)}"
        raise InputError(path, what, AGAIN)
    return array
