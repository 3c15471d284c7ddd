"""A stage's command in a container: `python -m ratchet.sandbox.stage_container WISH`, which a stage becomes by itself.

The container sees the stage's declared inputs, params.yaml, constraints.txt and the code, all read-only; what it writes
goes to a folder beside each place where its outputs belong, and from there into place once it has ended well. Refuses
to know what any stage does.
"""

from __future__ import annotations

import json
import math
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
from pydantic import SecretStr

from ratchet.core import atomic
from ratchet.core.errors import InputError
from ratchet.core.provenance import git_state
from ratchet.sandbox.choose import container
from ratchet.sandbox.job import PACKAGE_ROOT, End, Ended, Job, Limits
from ratchet.settings import Settings, is_key, settings
from ratchet.stage import RESULTS_IN_GIT, guarded, require

PROJECT_FILES = (Path("params.yaml"), Path("constraints.txt"))
NOT_PASSED = {"sandbox", "stages_in", "image", "image_digest", "env_file", "wandb"}
"""Settings that say nothing inside, or something else."""

LIMITS = {"processes": 1024, "file_mb": 2**20, "log_mb": 1024}
GRACE_S = 9.0
"""For a stage to save what it has; a flow gives ten seconds (flows/stage_process.py)."""

LOOK_S = 0.1


@dataclass(frozen=True)
class Wish:
    """What a stage asks for (ratchet/stage.py). Paths are relative to the project's folder."""

    stage: str
    argv: list[str]
    script: str
    reads: list[str]
    writes: list[str]
    outputs: list[str]
    provenance: str
    device: str

    def files(self) -> list[Path]:
        """All that it may read."""
        script = Path(self.script).resolve()
        own = [] if script.is_relative_to(PACKAGE_ROOT / "steps") else [script]
        return [*(path for path in PROJECT_FILES if path.exists()), *map(Path, self.reads), *own]


def run(wish: Wish) -> None:
    """Run the stage, publish its outputs, and end this process with its exit code when it was not 0.

    Raises InputError for what it lacks, InfrastructureError without an engine or when that dies.
    """
    sandbox = container(settings(), wish.device)
    require(wish.files(), wish.stage)
    for path in wish.files():
        _refuse_links(path, wish.stage)
    for path in map(Path, wish.writes):
        path.mkdir(parents=True, exist_ok=True)
    with _scratch(wish) as (scratch, log_file):
        job = _job(wish, log_file)
        print(f"{wish.stage}: in a container of {sandbox.image} ({sandbox.image_digest[:19]})", file=sys.stderr)
        with (
            _held(wish.device),
            _signals() as received,
            sandbox.start(job, instead=scratch) as running,
            job.log.open("rb") as log,
        ):
            while (ended := running.poll()) is None:
                _say(log.read())
                time.sleep(LOOK_S)
                if received:
                    ended = running.stop(GRACE_S)
                    break
            _say(log.read())
        _refuse(wish.stage, ended)
        for path in map(Path, wish.outputs):
            _publish(scratch[path.parent] / path.name, path, wish)


def _job(wish: Wish, log: Path) -> Job:
    log.touch()
    memory_mb = int(psutil.virtual_memory().total * 0.9 / 2**20)
    return Job(
        name=wish.stage,
        argv=tuple(wish.argv),
        folder=Path.cwd(),
        log=log,
        limits=Limits(seconds=math.inf, memory_mb=memory_mb, **LIMITS),
        reads=tuple(wish.files()),
        writes=tuple(map(Path, wish.writes)),
        environment=passed_on(settings()),
        device=wish.device,
        run=f"stage {wish.stage}",
    )


def passed_on(values: Settings) -> dict[str, str]:
    """The settings that somebody has made, as variables; no key. W&B has no network in there: offline, at most."""
    made = {name: getattr(values, name) for name in sorted(values.model_fields_set - NOT_PASSED)}
    plain = {name: value for name, value in made.items() if not isinstance(value, SecretStr) and not is_key(name)}
    wandb = "disabled" if values.wandb == "disabled" else "offline"
    named = {**plain, "wandb": wandb}
    return {f"RATCHET_{name.upper()}": str(value) for name, value in named.items() if value is not None}


@contextmanager
def _scratch(wish: Wish) -> Iterator[tuple[dict[Path, Path], Path]]:
    """Each folder that outputs belong in → an empty one in it, with a place for every input that lies there; and a file
    for what is printed. A killed process leaves them to the next one's sweep."""
    made: dict[Path, Path] = {}
    folders = sorted({Path(path).parent for path in wish.outputs})
    log = atomic.temp_beside(folders[0] / f"{wish.stage}-said")
    try:
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            atomic.sweep(folder)
            made[folder] = atomic.temp_beside(folder / f"{wish.stage}-container")
            made[folder].mkdir()
            for below in (*wish.files(), *folders):
                if below != folder and below.absolute().is_relative_to(folder.absolute()):
                    _place(made[folder] / below.absolute().relative_to(folder.absolute()), below)
        yield made, log
    finally:
        log.unlink(missing_ok=True)
        for folder in made.values():
            shutil.rmtree(folder, ignore_errors=True)


def _place(place: Path, mounted: Path) -> None:
    """Something for the engine to mount `mounted` on; it would make one itself, as root."""
    if mounted.is_dir():
        place.mkdir(parents=True, exist_ok=True)
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()


def _refuse_links(path: Path, stage: str) -> None:
    """Raise InputError for an input that holds a link out of it: in a container it leads nowhere. An input that is
    itself a link is mounted as what it points to."""
    for item in path.rglob("*") if path.is_dir() else ():
        if item.is_symlink() and not item.resolve().is_relative_to(path.resolve()):
            what = f"{item} is a link out of it, which a container cannot follow"
            raise InputError(stage, what, "set `dvc config cache.type reflink,copy`, then `dvc checkout --relink`")


def _held(device: str) -> AbstractContextManager[None]:
    """The device, held out here: what runs in a container has a temp folder, and so a lock, of its own."""
    if not device.startswith("cuda"):
        return nullcontext()
    from ratchet.train.device import exclusive, resolve_device  # torch: 2 s

    return exclusive(resolve_device(settings().device, settings().threads))


@contextmanager
def _signals() -> Iterator[list[int]]:
    """SIGINT and SIGTERM as entries of a list, so that the stage in the container can save first."""
    received: list[int] = []
    before = {which: signal.signal(which, lambda which, _: received.append(which)) for which in _WATCHED}
    try:
        yield received
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)


_WATCHED = (signal.SIGINT, signal.SIGTERM)


def _say(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _refuse(stage: str, ended: Ended) -> None:
    """End this process when the stage did not end well: with its exit code, or with a line when a limit ended it."""
    if ended.end in (End.OUT_OF_MEMORY, End.TOO_MUCH_OUTPUT):
        raise InputError(stage, f"{ended.end}: {ended.detail}", "make the work smaller, or RATCHET_STAGES_IN=process")
    if ended.end is not End.DONE:
        code = ended.exit_code or 130  # a stage that is stopped may end with 0, without its outputs
        if code > 128:
            print(f"{stage}: stopped: {ended.detail}", file=sys.stderr, flush=True)
        sys.exit(code)


def _publish(made: Path, path: Path, wish: Wish) -> None:
    """Move the output `made` to `path`. Raises InputError when it is missing, or is no plain file or folder of such."""
    if not made.exists() and not made.is_symlink():
        raise InputError(wish.stage, f"it ended without writing {path}", "see what it printed above")
    for item in chain([made], made.rglob("*") if made.is_dir() else ()):
        if item.is_symlink() or not (item.is_file() or item.is_dir()):
            raise InputError(wish.stage, f"its output {path} holds a link or a pipe", "write plain files")
    if str(path) == wish.provenance:
        facts: dict[str, Any] = json.loads(made.read_text(encoding="utf-8"))
        facts["versions"]["ratchet"] = _version()  # in there it is a folder, not a package, and there is no git
        atomic.write_json(made, {**facts, **git_state(Path.cwd(), RESULTS_IN_GIT)})
    if made.is_dir():
        atomic.publish_folder(made, path)
    else:
        made.replace(path)
        atomic.fsync_folder(path.parent)


def _version() -> str | None:
    """As provenance has it outside: of the package that is installed."""
    try:
        return metadata.version("ratchet")
    except metadata.PackageNotFoundError:
        return None


def main() -> None:
    """The wish is the one argument, as JSON."""
    wish = Wish(**json.loads(sys.argv[1]))
    sys.exit(guarded(wish.stage, lambda: run(wish)))


if __name__ == "__main__":
    main()
