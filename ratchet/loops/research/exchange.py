"""An experiment's way to a machine that shares nothing with the session but the DVC remote, and its result's way back.

The data comes by `dvc pull` of what the checkout's dvc.lock names; results lie below `experiments/` in the remote:

    experiments/<session>/<key>/trained.tar           model, history, timing, metrics: fetched only to be judged again
    experiments/<session>/<key>/result-<split>.tar    the result, the judge's table, log and history: sent last

Whatever decides the bytes of a result is told with the job and must be the same there: data, the trainer's code, the
kind of device. Refuses to know who calls whom (pool.py, flows/experiment.py).
"""

from __future__ import annotations

import errno
import fcntl
import sys
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from time import monotonic
from typing import Any, Protocol, TypeVar

import ratchet
from ratchet.core.errors import InfrastructureError, InputError
from ratchet.core.fingerprint import closure_digest, differences, tree_digest
from ratchet.loops.research.executor import Experiment, Result, StoppedError, kept_result, result_file
from ratchet.remotes import is_clients
from ratchet.train.device import Device, resolve_dtype
from ratchet.train.parameters import TrainParams

T = TypeVar("T")
FOLDER = "experiments"
DATA = ("rows", "tokenizer", "split")
TRAINED = "trained.tar"
SMALL = ("result-{split}*.json", "judged-{split}.parquet", "run.log", "trained/history.tsv")

AGAIN_S = 2.0
FINAL = (FileNotFoundError, PermissionError, tarfile.FilterError)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
NO_KEYS = ("NoCredentialsError", "PartialCredentialsError")
"""Of botocore, which is an extra."""

DECIDING = ("loops/research/experiment.py", "train/trainer.py", "train/logits_server.py")
"""The modules whose import closures decide an experiment's bytes; what starts a training and publishes it
(train/launch.py) does not."""


class UnreachedError(InfrastructureError):
    """A remote that could not be reached, or not to the end; it may be in a while."""


class Carrier(Protocol):
    """How a job goes to where it runs, and what it left comes back."""

    def parameters(self, job: Experiment) -> dict[str, Any]:
        """Of the flow run that does it."""
        ...

    def received(self, job: Experiment) -> Result | None:
        """Its result, when there is one; its files are then in its folder here."""
        ...


class SharedFolder:
    """A Carrier between processes that see the same folder of runs under the same path."""

    def parameters(self, job: Experiment) -> dict[str, Any]:
        """See Carrier."""
        return {"job": job.as_json()}

    def received(self, job: Experiment) -> Result | None:
        """See Carrier."""
        return kept_result(job)


class Remote:
    """The exchange's folder in the default DVC remote of `project`."""

    def __init__(self, project: Path) -> None:
        self.project = project

    @cached_property
    def _place(self) -> tuple[Any, str]:
        """The remote's file system and address. Raises InfrastructureError when there is none that can be reached."""
        from dvc.exceptions import DvcException
        from dvc.repo import Repo
        from dvc_objects.fs.errors import RemoteMissingDepsError

        try:
            with Repo(str(self.project)) as repo:
                remote = repo.cloud.get_remote()
                return remote.fs, remote.fs.join(remote.path, FOLDER)
        except (DvcException, ImportError, RemoteMissingDepsError) as error:
            do = "name one that all machines reach: `dvc remote add -d store ADDRESS`"
            raise InfrastructureError("experiments", f"no DVC remote: {error}", do) from None

    def _at(self, job: Experiment, name: str) -> str:
        fs, root = self._place
        return fs.join(root, job.session, job.key, name)

    def check(self) -> None:
        """Raise UnreachedError when the remote cannot be reached."""
        fs, root = self._place
        with reached():
            fs.exists(root)

    def send(self, job: Experiment, name: str, patterns: Sequence[str]) -> None:
        """Put what of the folder of `job` fits `patterns` into the archive `name`, whole or not at all."""
        fs, _ = self._place
        with tempfile.TemporaryDirectory() as folder, reached():
            packed = Path(folder) / name
            with tarfile.open(packed, "w") as archive:
                for path in sorted({path for pattern in patterns for path in job.folder.glob(pattern)}):
                    archive.add(path, str(path.relative_to(job.folder)))
            fs.makedirs(fs.parent(self._at(job, name)), exist_ok=True)
            fs.put_file(str(packed), self._at(job, name))

    def fetch(self, job: Experiment, name: str) -> bool:
        """Unpack the archive `name` into the folder of `job`, if it is there."""
        fs, _ = self._place
        with tempfile.TemporaryDirectory() as folder, reached():
            if not fs.exists(self._at(job, name)):
                return False
            fs.get_file(self._at(job, name), str(Path(folder) / name))
            job.folder.mkdir(parents=True, exist_ok=True)
            _unpack(Path(folder) / name, job.folder)
        return True


def _unpack(packed: Path, folder: Path) -> None:
    """Bring what `packed` holds into `folder`; last what says that the rest is whole, wherever a kill comes."""
    with tempfile.TemporaryDirectory(dir=folder) as raw, tarfile.open(packed) as archive:
        archive.extractall(raw, filter="data")
        files = [path.relative_to(raw) for path in Path(raw).rglob("*") if path.is_file()]
        for name in sorted(files, key=lambda name: (name.name == "metrics.json" or name.match("result-*"), name)):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(raw) / name).replace(folder / name)


class ThroughRemote:
    """A Carrier from the session in `project`, whose experiments one machine would train on `device`."""

    def __init__(self, project: Path, device: Device) -> None:
        self._remote, self._device = Remote(project), device
        self._digests: dict[Path, str] = {}
        code_of_an_experiment()  # kept, before there are threads: in CPython 3.11 two that parse at once may fail

    def parameters(self, job: Experiment) -> dict[str, Any]:
        """See Carrier. Raises InputError for data outside the project, which no pull would bring."""
        places = {name: self._inside(getattr(job, name)) for name in DATA}
        asked = {**job.as_json(), "folder": "", **places}
        data = {place: self._digest(self._remote.project / place) for place in places.values()}
        return {"job": asked, "away": {"data": data, **deciding(job, self._device)}}

    def received(self, job: Experiment) -> Result | None:
        """See Carrier."""
        return kept_result(job) if kept_result(job) or self._remote.fetch(job, archive_of(job)) else None

    def _inside(self, path: Path) -> str:
        try:
            return path.resolve().relative_to(self._remote.project.resolve()).as_posix()
        except ValueError:
            raise InputError(path, f"is not below {self._remote.project}", "keep the data in the project") from None

    def _digest(self, path: Path) -> str:
        if path not in self._digests:
            self._digests[path] = tree_digest(path)
        return self._digests[path]


def arrived(told: Mapping[str, Any], away: Mapping[str, Any], device: Device, project: Path, runs: Path) -> Experiment:
    """The experiment as this machine does it in `project`: its data pulled, its model fetched if it has been trained.

    Raises InputError when the checkout, its data or the `device` would give other bytes, InfrastructureError when the
    remote cannot be reached.
    """
    asked = Experiment.of(told)
    places = {name: (project / getattr(asked, name)).resolve() for name in DATA}
    job = replace(asked, folder=(runs / FOLDER / asked.session / asked.key).resolve(), **places)
    expected = {name: value for name, value in away.items() if name != "data"}
    if changes := differences(expected, deciding(job, device)):
        what = f"would give other bytes than the session's machine: {changes[0]}"
        raise InputError("experiment", what, "check out the session's commit on the same kind of device")
    bring(project, runs, away["data"])
    if not (job.folder / "trained/metrics.json").is_file():
        Remote(project).fetch(job, TRAINED)
    return job


def deciding(job: Experiment, device: Device) -> dict[str, Any]:
    """What of a machine decides the bytes of the result of `job`."""
    dtype = resolve_dtype(TrainParams.model_validate(dict(job.train)).dtype, device)
    return {"code": code_of_an_experiment(), "device": device.identity(dtype)}


@cache
def code_of_an_experiment() -> str:
    """Hash of all of Ratchet's code that trains and judges."""
    package = Path(ratchet.__file__).parent
    return closure_digest([package / name for name in DECIDING], package.parent)


def bring(project: Path, runs: Path, data: Mapping[str, str]) -> None:
    """Let the folders `data` (path in the project → hash) be there, by `dvc pull` of those that are not.

    Raises InputError when what dvc.lock names is not what the session has.
    """
    with _alone(runs):
        missing = [place for place in data if not (project / place).exists()]
        if missing:
            _pull(project, missing)
    for place, wanted in data.items():
        if tree_digest(project / place) != wanted:
            what = "is not the session's data, by its hash"
            raise InputError(project / place, what, "check out the session's commit, and `dvc pull`")


def _pull(project: Path, places: Sequence[str]) -> None:
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        with reached(), Repo(str(project)) as repo:
            repo.pull(targets=[*places])
    except DvcException as error:
        Remote(project).check()  # DVC says of a network's errors only how many files it has not got
        do = "`dvc push` where the session runs, and check out its commit here"
        raise InfrastructureError("dvc pull", f"{', '.join(places)}: {error}", do) from None


@contextmanager
def _alone(runs: Path) -> Iterator[None]:
    """One of this machine's experiments at a time."""
    runs.mkdir(parents=True, exist_ok=True)
    with (runs / "pull.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def reached() -> Iterator[None]:
    """What a remote raises when it cannot be reached, or gives half an archive, as InfrastructureError."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, OSError | tarfile.TarError) and not is_clients(error):
            raise
        kind = InfrastructureError if _is_final(error) else UnreachedError
        raise kind("experiments", f"the DVC remote fails: {error}", "mend it and run again") from None


def _is_final(error: Exception) -> bool:
    """Whether no waiting mends it: no such place, no right, no keys, no room here, an archive that is refused."""
    known = isinstance(error, FINAL) or getattr(error, "errno", None) in NO_ROOM
    return known or type(error).__name__ in NO_KEYS


def insistently(request: Callable[[], T], patience_s: float, stopping: threading.Event | None = None) -> T:
    """The outcome of `request`, made again while the remote cannot be reached, for `patience_s` at most.

    Raises UnreachedError after that, StoppedError when `stopping` is set meanwhile.
    """
    until, told = monotonic() + patience_s, False
    stopping = stopping or threading.Event()
    while True:
        try:
            return request()
        except UnreachedError as error:
            if monotonic() > until:
                raise
            if not told:
                print(f"{error.where}: {error.what}; asked again for {patience_s:g} s", file=sys.stderr, flush=True)
            told = True
            if stopping.wait(AGAIN_S):
                raise StoppedError from None


def deliver(job: Experiment, project: Path) -> None:
    """Send what `job` left: the training once, then the result."""
    remote = Remote(project)
    if job.split.name != "test":
        remote.send(job, TRAINED, ["trained"])
    remote.send(job, archive_of(job), [pattern.format(split=job.split.name) for pattern in SMALL])


def archive_of(job: Experiment) -> str:
    """The name of the archive that holds the result of `job`."""
    return result_file(job).with_suffix(".tar").name
