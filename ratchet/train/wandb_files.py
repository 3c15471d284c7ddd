"""What the files hold that W&B writes of a run on this machine: W&B has a command that prints them, and no function.

Refuses to know what is sent (mirror.py).
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

FILE_HEADER = b":W&B\xe1\xbe\x00"
BLOCK_BYTES = 32 * 1024
CHUNK = struct.Struct("<IHB")  # checksum, length, kind
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4

WRITER_SECONDS = 15.0


def recorded_steps(folder: Path, run_id: str) -> set[int]:
    """The steps that the offline files below `folder` hold for run `run_id`. Waits for a dead run's writer to end."""
    return {step for file in _files(folder, run_id) for step in history_steps(file)}


def recorded_alerts(folder: Path, run_id: str) -> set[str]:
    """The titles of the alerts that the same files hold."""
    return {
        record.alert.title
        for file in _files(folder, run_id)
        for record in entries(file)
        if record.WhichOneof("record_type") == "alert"
    }


def _files(folder: Path, run_id: str) -> list[Path]:
    # W&B names the folder by the second it starts in; the second of that second ends in -1
    files = sorted(folder.glob(f"wandb/*run-*-{run_id}*/run-{run_id}.wandb"))
    _wait_for_writer(files)
    return files


def _wait_for_writer(files: list[Path]) -> None:
    """W&B's own process outlives a killed training for a moment and may still append."""
    names = {str(file.resolve()) for file in files}
    deadline = time.monotonic() + WRITER_SECONDS
    while names and time.monotonic() < deadline and names & _open_files():
        time.sleep(0.1)


def _open_files() -> set[str]:
    held: set[str] = set()
    for process in psutil.process_iter(["name"]):
        if "wandb-core" in (process.info["name"] or "") or "gpu_stats" in (process.info["name"] or ""):
            try:
                held |= {file.path for file in process.open_files()}
            except psutil.Error:
                continue
    return held


def history_steps(file: Path) -> Iterator[int]:
    """The step of each history record in a `.wandb` file, in order; a torn end is passed over."""
    return (record.history.step.num for record in entries(file) if record.WhichOneof("record_type") == "history")


def entries(file: Path) -> Iterator[Any]:
    """The records of a `.wandb` file, in order, as W&B's own messages; a torn end is passed over."""
    from google.protobuf.message import DecodeError
    from wandb.proto import wandb_internal_pb2

    for data in _records(file.read_bytes()):
        record: Any = wandb_internal_pb2.Record()  # pyright: ignore[reportAttributeAccessIssue]  (made at import)
        try:
            record.ParseFromString(data)
        except DecodeError:
            return
        yield record


def _records(data: bytes) -> Iterator[bytes]:
    """The records of a LevelDB-style log: blocks of 32 KiB, a record being one chunk or first, middle …, last."""
    if not data.startswith(FILE_HEADER):
        return
    at, parts = len(FILE_HEADER), []
    while at + CHUNK.size <= len(data):
        if BLOCK_BYTES - at % BLOCK_BYTES < CHUNK.size:
            at += BLOCK_BYTES - at % BLOCK_BYTES
            continue
        _, length, kind = CHUNK.unpack_from(data, at)
        body = data[at + CHUNK.size : at + CHUNK.size + length]
        if len(body) < length or kind not in (FULL, FIRST, MIDDLE, LAST):
            return
        at += CHUNK.size + length
        parts = [body] if kind in (FULL, FIRST) else [*parts, body]
        if kind in (FULL, LAST):
            yield b"".join(parts)
