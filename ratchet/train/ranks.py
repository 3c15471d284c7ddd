"""The processes of one data-parallel training: which of them this is, and the few words that they exchange.

Every rank runs the trainer's own code in step: each trains its rows of every batch, gradients are averaged between
backward and optimizer, and whatever a clock, a signal or a file decides is agreed upon. Rank 0 alone keeps anything.
`ALONE` is a training in one process, which exchanges nothing. Refuses to know what is trained, and how ranks are
started (rank_launch.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from ratchet.core.errors import InfrastructureError, InputError
from ratchet.core.seeds import derive

T = TypeVar("T")


class Alone:
    """One process, which is all there is."""

    rank, size, local = 0, 1, 0

    def share(self, batch: Tensor) -> Tensor:
        """This rank's rows of a batch [B, T+1]."""
        return batch

    def average(self, gradients: Sequence[Tensor]) -> None:
        """Make each of `gradients` the mean over the ranks, in place. What an arena is told as `spec.reduce`."""

    def refuse_unaveraged(self, where: object) -> None:
        """Raise InputError when no gradient has been averaged since this was asked last."""

    def refuse_drift(self, state: Mapping[str, Tensor], where: object) -> None:
        """Raise InputError naming a tensor of `state` that differs from rank to rank."""

    def mean(self, loss: Tensor) -> float:
        """The mean of a 0-d tensor over the ranks."""
        return loss.item()

    def any(self, flag: bool) -> bool:
        """Whether any rank says so."""
        return flag

    def agreed(self, why: str) -> str:
        """The first reason that a rank has, the same on all; "" when none has."""
        return why

    def from_first(self, value: T) -> T:
        """Rank 0's `value`, whatever the others have."""
        return value

    def gather(self, value: T) -> list[T]:
        """Every rank's `value`, by rank."""
        return [value]

    def spread(self, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Rank 0's tensors, whatever the others have under the same names."""
        return state

    def seed(self, seed: int) -> int:
        """This rank's, for the global random generators: what an arena draws on a rank is its own."""
        return seed

    def orphaned(self) -> bool:
        """Whether who started this rank is gone."""
        return False


ALONE = Alone()


class Together(Alone):
    """One rank of several, joined by torch.distributed: gloo between CPUs, NCCL between GPUs."""

    def __init__(self) -> None:
        """Join the others. Raises InfrastructureError when they do not come."""
        import torch.distributed as dist

        self._dist, self._parent, self._averaged = dist, os.getppid(), 0
        with reaching():
            dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.local = dist.get_node_local_rank(0)  # pyright: ignore[reportPrivateImportUsage]

    def share(self, batch: Tensor) -> Tensor:
        """See Alone. Raises InputError when the rows cannot be shared evenly."""
        rows, rest = divmod(len(batch), self.size)
        if rest:
            what = f"batch_rows = {len(batch)} cannot be shared evenly by {self.size} ranks"
            raise InputError("arena", what, "make it a multiple, or change RATCHET_RANKS")
        return batch[self.rank * rows : (self.rank + 1) * rows]

    def average(self, gradients: Sequence[Tensor]) -> None:
        """See Alone."""
        self._averaged += 1
        whole = [gradient if gradient.is_contiguous() else gradient.contiguous() for gradient in gradients]
        with reaching():
            for work in [self._dist.all_reduce(gradient, async_op=True) for gradient in whole]:
                work.wait()
        for gradient, summed in zip(gradients, whole, strict=True):
            gradient.copy_(summed.div_(self.size))

    def refuse_unaveraged(self, where: object) -> None:
        """See Alone."""
        if not self._averaged:
            what = f"step() has not called spec.reduce, so {self.size} ranks would train {self.size} models"
            raise InputError(where, what, "call it on the list of all gradients before the optimizer, or use one rank")
        self._averaged = 0

    def refuse_drift(self, state: Mapping[str, Tensor], where: object) -> None:
        """See Alone. A sum of each tensor's words is compared, which costs a read of the state and no exchange."""
        seen = self.gather({name: word_sum(tensor) for name, tensor in state.items()})
        names = [name for name, value in seen[0].items() if any(other.get(name) != value for other in seen)]
        if names:
            what = f"{names[0]} differs from rank to rank"
            raise InputError(
                where, what, "give every gradient to spec.reduce, and compute nothing else from one's rows"
            )

    def mean(self, loss: Tensor) -> float:
        """See Alone."""
        total = loss.detach().double()
        with reaching():
            self._dist.all_reduce(total)
        return total.item() / self.size

    def any(self, flag: bool) -> bool:
        """See Alone."""
        raised = torch.tensor(int(flag))
        with reaching():
            self._dist.all_reduce(raised)
        return bool(raised.item())

    def agreed(self, why: str) -> str:
        """See Alone."""
        return next(filter(None, self.gather(why)), "")

    def from_first(self, value: T) -> T:
        """See Alone."""
        told: list[Any] = [value]
        with reaching():
            self._dist.broadcast_object_list(told, device=torch.device("cpu"))
        return told[0]

    def gather(self, value: T) -> list[T]:
        """See Alone."""
        told: list[Any] = [None] * self.size
        with reaching():
            self._dist.all_gather_object(told, value)
        return told

    def spread(self, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """See Alone."""
        plan = self.from_first({name: (t.shape, t.dtype, t.device.type) for name, t in state.items()})
        if self.rank:  # whose optimizer may have no state yet
            told = {name: torch.empty(shape, dtype=dtype, device=kind) for name, (shape, dtype, kind) in plan.items()}
        else:
            told = {name: tensor.detach().clone().contiguous() for name, tensor in state.items()}
        with reaching():
            for tensor in told.values():
                self._dist.broadcast(tensor, 0)
        return told

    def seed(self, seed: int) -> int:
        """See Alone. Rank 0's is that of a training in one process."""
        return derive(seed, "rank", self.rank) if self.rank else seed

    def orphaned(self) -> bool:
        """See Alone."""
        return os.getppid() != self._parent


def word_sum(tensor: Tensor) -> int:
    """The sum of a tensor's bits, read as integers of the size of its elements."""
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return int(tensor.detach().contiguous().reshape(-1).view(words).sum(dtype=torch.int64))


@contextmanager
def reaching() -> Iterator[None]:
    """What torch.distributed raises when another rank is gone, as InfrastructureError."""
    try:
        yield
    except RuntimeError as error:
        said = re.sub(r"^\[\S*\] ", "", str(error).strip()).partition("\n")[0].partition(". ")[0]
        do = "run again: it goes on from the last checkpoint"
        raise InfrastructureError("train", f"another rank cannot be reached ({said})", do) from None


def join() -> Alone:
    """The ranks of this process: those that torchrun has started it with, or itself alone."""
    import torch.distributed as dist

    launched = dist.is_available() and dist.is_torchelastic_launched()
    return Together() if launched else ALONE


Stand = tuple[tuple[int, dict[str, Any]] | None, list[dict[str, Any]]]
"""(seq, state) of a run's committed checkpoint, if there is one, and its rows."""
NOWHERE: Stand = (None, [])


class Follower:
    """The run to a rank that keeps nothing: it begins where rank 0's stands, and has a scratch folder.

    Takes the place of a RunDirectory with its store and ledger; what is put or committed goes no further.
    """

    def __init__(self, folder: Path, stand: tuple[int, dict[str, Any]] | None, rows: list[dict[str, Any]]) -> None:
        self.path, self.stop_file = folder, folder / "stop"
        self.store, self.ledger = _NoStore(folder, stand), _NoLedger(folder, rows)

    def end(self, *_: object) -> None:
        """As RunDirectory.end: rank 0 marks the run."""


class _NoStore:
    """As checkpoint.Store, as far as the trainer and `drive` use it."""

    def __init__(self, folder: Path, stand: tuple[int, dict[str, Any]] | None) -> None:
        self.folder, self._stand = folder, stand
        self.labels: dict[str, Any] = {}
        self.seq = stand[0] if stand else 0

    def load(self) -> tuple[int, dict[str, Any]] | None:
        return self._stand

    def commit(self, seq: int, *_: object, **__: object) -> None:
        self.seq = seq

    def path(self, _seq: int) -> Path:
        return self.folder


class _NoLedger:
    """As ledger.Ledger; the rows that were there before are without their steps."""

    def __init__(self, path: Path, rows: list[dict[str, Any]]) -> None:
        self.path, self._rows = path, rows

    def rows(self) -> list[dict[str, Any]]:
        return self._rows

    def put(self, seq: int, row: Mapping[str, Any]) -> None:
        self._rows[seq:] = [{**row, "seq": seq}]


def stand_of(run: Any) -> Stand:
    """Where the open `run` of rank 0 stands, for followers."""
    return run.store.load(), [{**row, "rows": []} for row in run.ledger.rows()]
