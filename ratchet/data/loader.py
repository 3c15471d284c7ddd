"""Batches of training rows in a shuffled order that is arithmetic: a keyed permutation of (seed, epoch, position).

The whole state is one integer, the number of batches served. Refuses to know the device and what the rows say.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import numpy as np
import torch

from ratchet.core.errors import InputError
from ratchet.core.seeds import Permutation, derive
from ratchet.data.packing import PackedSplit


class Loader:
    """Serves batches of `batch_rows` rows of `split`; one thread prepares the next batch meanwhile.

    Batch p holds the rows at places p·B … p·B + B − 1 of an endless order: place g is epoch g // R, and within the
    epoch place g % R of the permutation keyed by `seed` and the epoch. Every epoch serves every row once, and a batch
    may straddle two epochs. Raises InputError when `batch_rows` or `position` cannot be served.
    """

    def __init__(self, split: PackedSplit, *, batch_rows: int, seed: int, position: int = 0) -> None:
        if batch_rows < 1:
            raise InputError("loader", f"batch_rows = {batch_rows}", "serve at least 1 row")
        self._rows, self._batch_rows, self._seed = np.asarray(split.rows), batch_rows, seed
        self._epoch_order = (-1, Permutation(1, 0))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="loader")
        self.position = position

    @property
    def position(self) -> int:
        """Batches served: all there is to save. Setting it continues from there; what was prefetched is dropped."""
        return self._position

    @position.setter
    def position(self, position: int) -> None:
        if position < 0:
            raise InputError("loader", f"position = {position}", "continue at 0 or later")
        self._position = position
        self._ahead: Future[torch.Tensor] = self._thread.submit(self._batch, position)

    @property
    def epoch(self) -> float:
        """How many times the rows have been served."""
        return self._position * self._batch_rows / len(self._rows)

    def next(self) -> torch.Tensor:
        """The next batch, int64 [batch_rows, sequence_len + 1]: inputs are `[:, :-1]`, targets `[:, 1:]`."""
        batch = self._ahead.result()
        self.position = self._position + 1
        return batch

    def close(self) -> None:
        """End the thread. A closed loader serves no more."""
        self._thread.shutdown(cancel_futures=True)

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _batch(self, position: int) -> torch.Tensor:
        first = position * self._batch_rows
        rows = [self._row(place) for place in range(first, first + self._batch_rows)]
        return torch.from_numpy(self._rows[rows].astype(np.int64))

    def _row(self, place: int) -> int:
        epoch, index = divmod(place, len(self._rows))
        if self._epoch_order[0] != epoch:
            key = derive(self._seed, "row order", epoch)
            self._epoch_order = (epoch, Permutation(len(self._rows), key))
        return self._epoch_order[1][index]
