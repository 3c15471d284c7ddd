"""The candidate's side of judging: `python -m ratchet.train.logits_server`, one process that answers with logits.

Loads `arena.py` and `model.safetensors` from a model folder and, for token ids [B, T] that come over a socket, writes
float32 logits [B*T, V] in pieces into shared memory. Refuses to know targets, byte lengths and scores: it is never sent
any. Everything that this process says is a claim of the candidate's; the judge checks it (ratchet/train/judge.py).
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import socket
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors.torch import load_file
from torch import Tensor

from ratchet.train.arena import Spec, load_arena
from ratchet.train.device import prepare_process, resolve_device
from ratchet.train.refusal import Reason
from ratchet.train.wire import VERSION, Channel, ClosedError, Kind, Message

LOGIT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Slots:
    """The shared memory: `views[i]` is float32 [positions, V], written here and read by the judge."""

    views: list[Tensor]

    @classmethod
    def open(cls, descriptor: int, *, slots: int, positions: int, vocab_size: int) -> Slots:
        """Map `slots` areas of `positions` x `vocab_size` floats that lie one after another in `descriptor`."""
        memory = mmap.mmap(descriptor, slots * positions * vocab_size * 4)
        os.close(descriptor)
        whole = torch.frombuffer(memory, dtype=torch.float32).view(slots, positions, vocab_size)
        return cls(list(whole))


class Server:
    """Answers ASK with PIECEs, in order. `free` are the slots the judge has done with."""

    def __init__(self, channel: Channel, experiment: Any, slots: Slots, *, shape: tuple[int, int, int], device: str):
        self.channel, self.experiment, self.slots, self.shape, self.device = channel, experiment, slots, shape, device
        self.free = deque(range(len(slots.views)))
        self.asked: deque[Message] = deque()

    def serve(self) -> None:
        """Until the judge closes the connection."""
        while True:
            while not self.asked:
                self._listen()
            ask = self.asked.popleft()
            logits = self._logits(ask)
            self._deliver(ask.numbers[0], logits.reshape(-1, logits.size(-1)))

    def _listen(self) -> None:
        for message in self.channel.receive():
            if message.kind is Kind.ASK:
                self.asked.append(message)
            elif message.kind is Kind.FREE:
                self.free.append(message.numbers[0])

    def _logits(self, ask: Message) -> Tensor:
        """The model's answer [B, T, V]. One that is none is complained about, which ends the serving."""
        rows, length, vocab_size = self.shape
        tokens = torch.frombuffer(bytearray(ask.payload), dtype=torch.int32).view(rows, length).long()
        with torch.inference_mode():
            logits = self.experiment.logits(tokens.to(self.device))
        if not isinstance(logits, Tensor) or logits.shape != (rows, length, vocab_size):
            found = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            self._fail(Reason.WRONG_SHAPE, f"logits of shape {found}, not [{rows}, {length}, {vocab_size}]")
        if logits.dtype not in LOGIT_DTYPES:
            self._fail(Reason.WRONG_DTYPE, f"logits of {logits.dtype}, not float32, bfloat16 or float16")
        return logits

    def _deliver(self, serial: int, logits_NV: Tensor) -> None:
        """Hand `logits_NV` over piece by piece; waits while the judge still reads all slots."""
        step = self.slots.views[0].size(0)
        for first in range(0, logits_NV.size(0), step):
            while not self.free:
                self._listen()
            slot = self.free.popleft()
            part = logits_NV[first : first + step]
            with torch.inference_mode():
                self.slots.views[slot][: part.size(0)].copy_(part)
            self.channel.send(Message(Kind.PIECE, (serial, slot, first, part.size(0))))

    def _fail(self, reason: Reason, detail: str) -> NoReturn:
        """Complain, then hear the judge out until it closes: were this process gone while the judge still asks, the
        judge would find a closed connection before it reads the complaint. Raises ClosedError."""
        self.channel.send(Message.of_json(Kind.FAIL, {"reason": reason, "detail": detail}))
        while True:
            self._listen()


def load_experiment(model: Path, device: str) -> Any:
    """The trained Experiment of a model folder. Whatever the arena's code raises passes through."""
    spec = json.loads((model / "spec.json").read_text())
    known = {name: spec[name] for name in ("vocab_size", "sequence_len", "dtype", "seed")}
    experiment = load_arena(model / "arena.py").build(Spec(**known, device=device, compile=False))
    weights = load_file(model / "model.safetensors")
    experiment.load_state_dict({name: value for name, value in weights.items() if name.startswith("model.")})
    return experiment


def main() -> None:
    """Connect, load, serve. Arguments: --socket PATH --model FOLDER --device NAME --threads N."""
    parser = argparse.ArgumentParser(prog="python -m ratchet.train.logits_server", description=__doc__)
    for name in ("--socket", "--model", "--device"):
        parser.add_argument(name, required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(options.socket)
    channel = Channel(connection)
    hello, descriptors = channel.receive_with_descriptors(1)
    said = hello.json()
    if said["version"] != VERSION:
        sys.exit(f"the judge speaks version {said['version']}, this server {VERSION}")
    shape = (said["rows"], said["length"], said["vocab_size"])
    slots = Slots.open(descriptors[0], slots=said["slots"], positions=said["positions"], vocab_size=shape[2])
    device = resolve_device(options.device, options.threads)
    prepare_process(device, strict=False)
    experiment = load_experiment(Path(options.model), device.torch_name)
    channel.send(Message(Kind.READY))
    try:
        Server(channel, experiment, slots, shape=shape, device=device.torch_name).serve()
    except ClosedError:
        return


if __name__ == "__main__":
    main()
