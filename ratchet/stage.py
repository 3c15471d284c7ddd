"""A stage: one file in steps/, one entry in dvc.yaml, one section of params.yaml.

Knows how a stage's process starts and ends; refuses to know what any stage does.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from ratchet import params as params_file
from ratchet.core import atomic
from ratchet.core.errors import InputError, RatchetError
from ratchet.core.provenance import collect
from ratchet.settings import settings

LAUNCHER = "ratchet.sandbox.stage_container"
"""The module that runs a stage's command in a container. Started, not imported: where a stage runs is no part of what
it computes (ratchet/contract.py)."""

CHECKER = "ratchet.tables.metrics"
"""The module that knows what metrics/*.json may hold. Not imported either: it can refuse a result and change none, so a
word in a schema's description makes no stage stale."""

RESULTS_IN_GIT = ("dvc.lock", "metrics")
"""What running stages changes in a checkout: it does not make the code dirty."""

P = TypeVar("P", bound=params_file.Params)
I = TypeVar("I", bound=NamedTuple)  # noqa: E741  (P, I, O: params, inputs, outputs)
O = TypeVar("O", bound=NamedTuple)  # noqa: E741


def one_cpu() -> dict[str, Any]:
    """The `machine` of a stage that computes on no device it could choose."""
    return {"device": f"cpu ({platform.machine()})", "threads": 1}


@dataclass(frozen=True)
class Needs:
    """What a stage needs beside its inputs and outputs, where it sees only what it was given.

    `outside` is why it cannot run in a container at all; empty when it can.
    """

    reads: tuple[Path, ...] = ()
    writes: tuple[Path, ...] = ()
    outside: str = ""


def no_needs(_params: object) -> Needs:
    """The `needs` of a stage whose inputs and outputs are all of it."""
    return Needs()


@dataclass(frozen=True)
class Stage(Generic[P, I, O]):
    """`run(params, inputs, outputs)` under a name; paths are relative to the project's folder, where DVC runs it.

    `machine` gives the device and threads for its provenance, as resolved from the settings, not as torch guesses them.
    `needs` tells what of the world its params make it need.
    """

    name: str
    params: type[P]
    inputs: I
    outputs: O
    run: Callable[[P, I, O], None]
    machine: Callable[[], Mapping[str, Any]] = one_cpu
    needs: Callable[[P], Needs] = no_needs

    def main(self) -> None:
        """Run the stage as a process: validate, run, and end with one line and an exit code when something is wrong."""
        sys.exit(guarded(self.name, self._run_from_params))

    def _run_from_params(self) -> None:
        settings()  # a wrong variable is told before the work, not after it
        values = params_file.load(self.name, self.params)
        require(self.inputs, self.name)
        if settings().stages_in == "container":
            self._go_into_container(values)
        for folder in {Path(path).parent for path in self.outputs}:
            atomic.sweep(folder)
        self.run(values, self.inputs, self.outputs)
        check_metrics(self.outputs)
        write_provenance(self.name, self.outputs, self.machine)

    def _go_into_container(self, values: P) -> None:
        """Become the process that runs this stage's command in a container; return when it cannot run in one."""
        needs = self.needs(values)
        if needs.outside:
            print(f"{self.name}: runs outside a container: {needs.outside}", file=sys.stderr, flush=True)
            return
        wish = {
            "stage": self.name,
            "argv": ["python", *sys.orig_argv[1:]],
            "script": sys.argv[0],
            "reads": [str(path) for path in (*self.inputs, *needs.reads)],
            "writes": [str(path) for path in needs.writes],
            "outputs": [str(path) for path in self.outputs],
            "provenance": str(getattr(self.outputs, "provenance", "")),
            "device": str(self.machine()["device"]).partition(" ")[0],
        }
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, "-m", LAUNCHER, json.dumps(wish)])


def require(paths: Iterable[Path], where: str) -> None:
    """Raise InputError for the first of `paths` that does not exist."""
    for path in paths:
        if not Path(path).exists():
            raise InputError(where, f"input {path} does not exist", "run the stage that makes it: `dvc repro`")


def check_metrics(outputs: Iterable[Path]) -> None:
    """Raise what a reader of these metrics/*.json would, while DVC has not taken them up."""
    written = [Path(path) for path in outputs if Path(path).parent.name == "metrics"]
    if written:
        checker = import_module(CHECKER)
        for path in written:
            checker.read(path)


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
