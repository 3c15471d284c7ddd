"""A job in a container of its own: no network, a read-only root, only the files it was given, hard limits.

Talks to a Docker engine through its SDK; the engine's socket is never mounted. An engine that fails is the world's
fault, never the job's. Refuses to know how images are built (containers/build.py).
"""

from __future__ import annotations

import os
import re
import signal
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import docker
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.types import DeviceRequest, LogConfig, Mount, Ulimit
from requests.exceptions import RequestException
from urllib3.exceptions import HTTPError

from ratchet.core.errors import InfrastructureError, InputError
from ratchet.sandbox.hand_over import ROOTS_HOME, Hands, hand_over, stand_in
from ratchet.sandbox.job import (
    MIB,
    PACKAGE_ROOT,
    PYTHON,
    End,
    Ended,
    Isolation,
    Job,
    Kind,
    Limits,
    Running,
    Verdict,
    how_it_exited,
)
from ratchet.sandbox.keys import refuse_keys
from ratchet.sandbox.owners import Owner
from ratchet.sandbox.words import last_lines, printable
from ratchet.settings import job_environment

CODE = ("ratchet", "steps")
"""Folders of the package root that every container sees, read-only."""

RUN_LABEL, OWNER_LABEL = "ratchet.run", "ratchet.owner"
SEEN = ("CUDA_VISIBLE_DEVICES", "TZ")
"""All that a container sees of the caller's environment; what it needs for itself comes with its image."""

TASKS_PER_CPU = 4
"""Threads that torch and BLAS start for each CPU; the engine counts threads as processes."""

PATIENCE_S = 300
"""With one answer of the engine's: on a machine under load it took more than 60 s to start or end a container."""

KILLED_S = 120.0
ENDED_FROM_OUTSIDE = (128 + signal.SIGKILL, 128 + signal.SIGTERM)
ENGINE_ERRORS = (DockerException, RequestException, HTTPError, ConnectionError)


class ContainerSandbox:
    """Runs jobs in containers of `image` on the engine that DOCKER_HOST or the default socket names.

    Making one removes what dead owners left on the engine. Raises InfrastructureError without engine or image.
    """

    kind: Kind = "container"
    isolation: Isolation = "container"

    def __init__(self, image: str, *, engine: str | None = None) -> None:
        self.image = image
        self._lost: set[str] = set()
        """Containers that an engine which failed may have kept."""
        try:
            client = docker.DockerClient(engine, timeout=PATIENCE_S) if engine else docker.from_env(timeout=PATIENCE_S)
            self._api = client.api
            self.engine = f"Docker {self._api.version()['Version']}"
            found = self._api.inspect_image(image)
        except ImageNotFound:
            raise InfrastructureError(
                "sandbox", f"the engine has no image {image}", "build it: `python containers/build.py`"
            ) from None
        except ENGINE_ERRORS as error:
            raise InfrastructureError(
                "sandbox", f"no container engine answers: {_short(error)}", "start one, or set RATCHET_SANDBOX=process"
            ) from None
        self.image_digest: str = next(iter(found.get("RepoDigests") or []), found["Id"]).rpartition("@")[2]
        self.reap()

    def reap(self) -> list[str]:
        """Remove the containers whose owner is gone, and those that an engine kept when it failed; their names.

        Raises InfrastructureError when the engine fails; what it may have kept stays in mind until it is gone.
        """
        lost, kept, reaped = set(self._lost), set[str](), list[str]()
        try:
            for found in self._api.containers(all=True, filters={"label": OWNER_LABEL}):
                owner = Owner.read(found["Labels"][OWNER_LABEL])
                if found["Id"] in lost or (owner is not None and owner.is_gone()):
                    if self._remove(found["Id"]):
                        reaped.append(found["Names"][0].removeprefix("/"))
                    else:
                        kept.add(found["Id"])
        except ENGINE_ERRORS as error:
            what = f"the engine does not say or remove what is left on it: {_short(error)}"
            raise InfrastructureError("sandbox", what, "see to the engine, or set RATCHET_SANDBOX=process") from None
        self._lost.difference_update(lost - kept)
        return reaped

    def _remove(self, container: str) -> bool:
        """Whether it is gone now; it is not while another process removes it, or when the engine cannot."""
        try:
            self._api.remove_container(container, v=True, force=True)
        except NotFound:
            return True
        except APIError:
            return False
        return True

    def start(self, job: Job, *, instead: Mapping[Path, Path] | None = None) -> RunningContainer:
        """Start `job`. `instead`: a folder that it writes → the folder of the caller's that stands for it.

        Raises InputError for a key or a missing path, InfrastructureError when the engine cannot.
        """
        instead = {path.absolute(): source.absolute() for path, source in (instead or {}).items()}
        refuse_keys(job)
        if self._lost:
            with suppress(InfrastructureError):
                self.reap()
        for path in (*job.reads, *job.writes):
            if not path.exists():
                raise InputError(job.name, f"{path} does not exist", "give only paths that are there")
        job.log.parent.mkdir(parents=True, exist_ok=True)
        hands = hand_over(job.reads, (*job.writes, *instead.values()), job.name)
        name = f"ratchet-{re.sub(r'[^a-zA-Z0-9_.-]+', '-', job.name)}-{uuid.uuid4().hex[:8]}"
        try:
            hands = replace(hands, home=stand_in(_places(job, instead).items()))
            return RunningContainer(self._api, self._create(job, name, hands, instead), job, name, hands, self._lost)
        except BaseException:
            with suppress(*ENGINE_ERRORS):
                self._api.remove_container(name, v=True, force=True)
            hands.take_back()
            raise

    def _create(self, job: Job, name: str, hands: Hands, instead: Mapping[Path, Path]) -> str:
        """The new container's id."""
        places = {"HOME": "/tmp", "TMPDIR": "/tmp", "USER": "ratchet", "LANG": "C.UTF-8"}
        quiet = {"PYTHONDONTWRITEBYTECODE": "1", "RATCHET_IMAGE_DIGEST": self.image_digest}
        try:
            made = self._api.create_container(
                self.image,
                ["python3" if job.argv[0] == "python" else job.argv[0], *job.argv[1:]],
                name=name,
                entrypoint="",
                user=f"{hands.uid}:{hands.gid}",
                working_dir=str(job.folder.absolute()),
                environment={**job_environment(SEEN), **places, **PYTHON, **quiet, **job.environment},
                labels={RUN_LABEL: job.run, OWNER_LABEL: str(Owner.me())},
                host_config=self._api.create_host_config(
                    **_held(job.limits), mounts=list(_mounts(job, hands, instead)), device_requests=_gpus(job.device)
                ),
            )
        except ENGINE_ERRORS as error:
            raise InfrastructureError(job.name, f"no container can be made: {_short(error)}", "see to it") from None
        return made["Id"]


class RunningContainer(Running):
    """A job in its container. Leaving the `with` ends and removes it."""

    def __init__(
        self, api: docker.APIClient, container: str, job: Job, name: str, hands: Hands, lost: set[str]
    ) -> None:
        self.name, self._lost = name, lost
        self._api, self._id, self._job, self._hands = api, container, job, hands
        self._verdict: Verdict | None = None
        self._ended: Ended | None = None
        self._failure: InfrastructureError | None = None
        self._over: InfrastructureError | None = None
        """The failure, once all has been done about it."""
        self._code = 0
        try:
            output = api.attach(container, stdout=True, stderr=True, stream=True)
            api.start(container)
        except ENGINE_ERRORS as error:
            raise _not_started(job, error) from None
        self._started = monotonic()
        self._reader = threading.Thread(target=self._copy, args=(output,), daemon=True)
        self._waiter = threading.Thread(target=self._wait, daemon=True)
        self._clock = threading.Timer(
            min(job.limits.seconds, threading.TIMEOUT_MAX),
            self._time_out,
        )
        self._clock.daemon = True
        for thread in (self._reader, self._waiter, self._clock):
            thread.start()

    def _copy(self, output: Iterator[bytes]) -> None:
        """What the job prints, up to its limit, into its log."""
        room = self._job.limits.log_mb * MIB
        with self._job.log.open("wb", buffering=0) as log, suppress(*ENGINE_ERRORS):  # the waiter notices those
            for data in output:
                if room < 0:  # it is being ended
                    continue
                try:
                    log.write(data[:room])
                    room -= len(data)
                except OSError as error:  # a full disk
                    self._failed(f"its output cannot be kept: {error.strerror}")
                    room = -1
                if room < 0:
                    # in a thread: the engine ends nothing whose output nobody takes meanwhile (60 s, measured)
                    detail = f"more than {self._job.limits.log_mb} MiB printed"
                    threading.Thread(target=self._end, args=(End.TOO_MUCH_OUTPUT, detail), daemon=True).start()

    def _wait(self) -> None:
        """Wait for the exit code. Only an engine that lives until then delivers it."""
        try:
            self._code = int(self._api.wait(self._id)["StatusCode"])
        except (*ENGINE_ERRORS, ValueError, KeyError) as error:
            self._failed(f"the container engine failed while it ran: {_short(error)}")

    def _time_out(self) -> None:
        """A job that forks without end is held by its limit of processes, and then by the clock: name both."""
        detail = f"no end within {self._job.limits.seconds:g} s"
        with suppress(*ENGINE_ERRORS, KeyError):
            tasks = self._api.stats(self._id, stream=False, one_shot=True)["pids_stats"]
            if tasks["current"] >= 0.9 * tasks["limit"]:
                detail += f", with all of its {tasks['limit']} processes in use"
        self._end(End.TIMED_OUT, detail)

    def _end(self, end: End, detail: str) -> None:
        if self._verdict is None:
            self._verdict = Verdict(end, detail)
            self._kill("SIGKILL")

    def _kill(self, name: str) -> None:
        with suppress(*ENGINE_ERRORS):  # ended already, or the engine is gone, which the waiter notices
            self._api.kill(self._id, name)

    def poll(self) -> Ended | None:
        """How it ended, or None while it runs. Raises InfrastructureError when the engine died, not the job."""
        if self._ended is None and self._over is None and not self._waiter.is_alive():
            self._finish()
        if self._over is not None:
            raise self._over
        return self._ended

    def wait(self) -> Ended:
        """Wait for its end, which its own limit bounds. Raises InfrastructureError as `poll`."""
        self._waiter.join()
        ended = self.poll()
        assert ended is not None
        return ended

    def stop(self, grace_s: float = 10.0) -> Ended:
        """SIGTERM, then SIGKILL after `grace_s` seconds; all that it started goes too."""
        if self._waiter.is_alive() and self._verdict is None:
            self._verdict = Verdict(End.STOPPED, "by its owner")
            if grace_s > 0:
                self._kill("SIGTERM")
                self._waiter.join(grace_s)
        if self._waiter.is_alive():
            self._kill("SIGKILL")
            self._waiter.join(KILLED_S)
        if self._waiter.is_alive():
            raise InfrastructureError(self.name, f"the engine does not end it in {KILLED_S:g} s", "restart the engine")
        return self.wait()

    def _finish(self) -> None:
        """Read how it ended, remove it, take the folders back."""
        self._clock.cancel()
        seconds = monotonic() - self._started
        self._reader.join(KILLED_S)
        oom = False
        if self._verdict is None and self._code in ENDED_FROM_OUTSIDE:
            self._api.close()  # an engine that shuts down ends its containers and answers, on connections that it has
        try:
            oom = bool(self._api.inspect_container(self._id)["State"]["OOMKilled"])
            self._api.remove_container(self._id, v=True, force=True)
        except ENGINE_ERRORS as error:
            self._failed(f"the container engine failed at its end: {_short(error)}")
            self._lost.add(self._id)
        finally:
            self._hands.take_back()
        if self._failure is not None:
            self._over = self._failure
            return
        verdict = self._verdict or _verdict(self._code, oom, self._job.limits)
        self._ended = Ended(verdict.end, self._code, seconds, last_lines(self._job.log), verdict.detail)

    def _failed(self, what: str) -> None:
        """Note the first thing that went wrong in the world, not in the job."""
        self._failure = self._failure or InfrastructureError(self.name, what, "see to the engine, then run again")


def _verdict(code: int, oom: bool, limits: Limits) -> Verdict:
    """What an end is that nobody here has brought about."""
    if code == 0:
        return Verdict(End.DONE, "")
    if oom:
        return Verdict(End.OUT_OF_MEMORY, f"over {limits.memory_mb:,} MiB")
    return Verdict(End.CRASHED, how_it_exited(code))


def _held(limits: Limits) -> dict[str, Any]:
    """The engine's options that hold a container to `limits`, and to what no job may do."""
    cpus = _cpus()
    return {
        "network_mode": "none",
        "read_only": True,
        "tmpfs": {"/tmp": f"size={max(64, limits.memory_mb // 4)}m,mode=1777,exec,nosuid,nodev"},
        "mem_limit": limits.memory_mb * MIB,
        "memswap_limit": limits.memory_mb * MIB,
        "pids_limit": limits.processes + TASKS_PER_CPU * len(cpus),
        "cpuset_cpus": ",".join(map(str, cpus)) if len(cpus) < (os.cpu_count() or 1) else None,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "init": True,
        "ulimits": [
            Ulimit(name="fsize", soft=limits.file_mb * MIB, hard=limits.file_mb * MIB),
            Ulimit(name="core", soft=0, hard=0),
        ],
        "log_config": LogConfig(type=LogConfig.types.NONE),  # the engine would keep a second, endless copy
    }


def _cpus() -> list[int]:
    """The CPUs that the caller may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def _places(job: Job, instead: Mapping[Path, Path]) -> dict[Path, Path]:
    """The code, then what the job reads and writes: where it sees it → what lies there."""
    code = [PACKAGE_ROOT / name for name in CODE if (PACKAGE_ROOT / name).is_dir()]
    return {path.absolute(): path for path in (*code, *job.reads, *job.writes)} | dict(instead)


def _mounts(job: Job, hands: Hands, instead: Mapping[Path, Path]) -> Iterator[Mount]:
    """Each of these at its own path; nothing mounted below them comes along."""
    writes = {path.absolute() for path in (*job.writes, *instead)}
    home = {} if hands.home is None else {ROOTS_HOME: hands.home}
    for path, source in {**home, **_places(job, instead)}.items():
        mount = Mount(str(path), str(source.resolve()), type="bind", read_only=path not in writes)
        mount["BindOptions"] = {"NonRecursive": True}
        yield mount


def _gpus(device: str) -> list[DeviceRequest] | None:
    """All of them, so that an index means the same inside; CUDA_VISIBLE_DEVICES comes along."""
    return [DeviceRequest(count=-1, capabilities=[["gpu"]])] if device.startswith("cuda") else None


def _not_started(job: Job, error: Exception) -> InfrastructureError:
    said = _short(error)
    if "could not select device driver" in said:
        what = "the engine cannot give a container a GPU"
        return InfrastructureError(
            job.name, what, "install the GPU vendor's container toolkit, or use RATCHET_DEVICE=cpu"
        )
    return InfrastructureError(job.name, f"its container does not start: {said}", "see to the engine, then run again")


def _short(error: Exception) -> str:
    """One line of what the engine or the way to it said."""
    said = error.explanation if isinstance(error, APIError) and error.explanation else str(error)
    return printable(" ".join(str(said).split()))
