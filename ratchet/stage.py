"""A stage: one file in steps/, one entry in dvc.yaml, one section of params.yaml.

Knows how a stage's process starts and ends; refuses to know what any stage does.
"""

from __future__ import annotations

import errno
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from ratchet import params as params_file
from ratchet.core import atomic
from ratchet.core.errors import InputError, RatchetError
from ratchet.core.provenance import collect
from ratchet.settings import settings

RESULTS_IN_GIT = ("dvc.lock", "metrics")
"""What running stages changes in a checkout: it does not make the code dirty."""

P = TypeVar("P", bound=params_file.Params)
I = TypeVar("I", bound=NamedTuple)  # noqa: E741  (P, I, O: params, inputs, outputs)
O = TypeVar("O", bound=NamedTuple)  # noqa: E741


def one_cpu() -> dict[str, Any]:
    """The `machine` of a stage that computes on no device it could choose."""
    return {"device": f"cpu ({platform.machine()})", "threads": 1}


@dataclass(frozen=True)
class Stage(Generic[P, I, O]):
    """`run(params, inputs, outputs)` under a name; paths are relative to the project's folder, where DVC runs it.

    `machine` gives the device and threads for its provenance, as resolved from the settings, not as torch guesses them.
    """

    name: str
    params: type[P]
    inputs: I
    outputs: O
    run: Callable[[P, I, O], None]
    machine: Callable[[], Mapping[str, Any]] = one_cpu

    def main(self) -> None:
        """Run the stage as a process: validate, run, and end with one line and an exit code when something is wrong."""
        sys.exit(guarded(self.name, self._run_from_params))

    def _run_from_params(self) -> None:
        settings()  # a wrong variable is told before the work, not after it
        values = params_file.load(self.name, self.params)
        require(self.inputs, self.name)
        for folder in {Path(path).parent for path in self.outputs}:
            atomic.sweep(folder)
        self.run(values, self.inputs, self.outputs)
        write_provenance(self.name, self.outputs, self.machine)


def require(paths: Iterable[Path], where: str) -> None:
    """Raise InputError for the first of `paths` that does not exist."""
    for path in paths:
        if not Path(path).exists():
            raise InputError(where, f"input {path} does not exist", "run the stage that makes it: `dvc repro`")


def write_provenance(stage: str, outputs: NamedTuple, machine: Callable[[], Mapping[str, Any]] = one_cpu) -> None:
    """Write where the results of `stage` come from to `outputs.provenance`, if it has that field."""
    path: Path | None = getattr(outputs, "provenance", None)
    if path is None:
        return
    facts = collect(
        Path.cwd(),
        image_digest=settings().image_digest,
        exclude=RESULTS_IN_GIT,
        stage=stage,
        **machine(),
    )
    atomic.write_json(path, facts)


def guarded(where: str, body: Callable[[], None]) -> int:
    """Call `body`; return its exit code.

    A known error or Ctrl-C (130) is one line on stderr, an unknown one keeps its traceback.
    """
    try:
        body()
    except RatchetError as error:
        print(error, file=sys.stderr, flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"{where}: interrupted; run again", file=sys.stderr, flush=True)
        return 130
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        print(f"{where}: the disk is full while writing {error.filename or 'a file'}; free space and run again",
              file=sys.stderr, flush=True)  # fmt: skip
        return 2
    return 0
