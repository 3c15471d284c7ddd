"""What `ratchet doctor` finds out about the machine: device and memory, engine, remote, room on disk, W&B, drawing.

Looks and changes nothing; waits for no network longer than `PATIENCE_S`. Refuses to know stages.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ratchet.core.errors import InputError, RatchetError
from ratchet.settings import Settings, job_environment, secret

PATIENCE_S = 3.0
GB = 1e9
PORTS = {"http": 80, "https": 443, "webhdfs": 9870, "ssh": 22, "s3": 443, "gs": 443, "azure": 443, "oss": 443}
CGROUP = Path("/sys/fs/cgroup")


class Finding(NamedTuple):
    """One line of `ratchet doctor`. `do` is what to type when it is not good."""

    what: str
    good: bool
    found: str
    do: str = ""


def gb(size: float) -> str:
    """Bytes as a person reads them."""
    if size >= GB / 10:
        return f"{size / GB:.1f} GB"
    return f"{size / 1e6:.0f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


def writable(folder: Path) -> str:
    """Why nothing can be written into `folder`, or into the nearest one above that is there; empty when it can."""
    place = folder
    while not place.exists() and place.parent != place:
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            return ""
    except OSError as error:
        return f"{place}: {error.strerror}"


def free_bytes(folder: Path) -> int:
    """Room left where `folder` lies or will lie."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def device(here: Settings) -> Finding:
    """The device that the settings come to, and what CUDA_VISIBLE_DEVICES says."""
    from ratchet.train.device import resolve_device

    visible = visible_devices()
    seen = f"; CUDA_VISIBLE_DEVICES {'is not set' if visible is None else f'= {visible!r}'}"
    try:
        found = resolve_device(here.device, here.threads)
    except InputError as error:
        return Finding("device", False, error.what + seen, error.do)
    if visible and here.device == "auto" and found.kind == "cpu":
        what = f"CUDA_VISIBLE_DEVICES = {visible!r}, but torch finds no such device: everything would run on the CPU"
        return Finding("device", False, what, "name devices that are there, mend the driver, or set RATCHET_DEVICE=cpu")
    return Finding("device", True, f"{found.torch_name} ({found.name}), {found.threads} threads{seen}")


def visible_devices() -> str | None:
    """CUDA_VISIBLE_DEVICES as every job will see it; None when it is not set."""
    name = "CUDA_VISIBLE_DEVICES"
    return job_environment([name]).get(name)


def free_memory(kind: str, index: int) -> tuple[float, str]:
    """Bytes that a process could take on a device, and where they are."""
    if kind == "cuda":
        import torch

        free, total = torch.cuda.mem_get_info(index)
        return float(free), f"free of {gb(total)} on cuda:{index}"
    import psutil

    left = float(psutil.virtual_memory().available)
    try:
        limit, used = ((CGROUP / name).read_text(encoding="ascii").strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return left, "free on this machine"
    if limit != "max" and float(limit) - float(used) < left:
        return float(limit) - float(used), "left of this container's limit"
    return left, "free on this machine"


def engine(here: Settings) -> Finding:
    """The container engine and its image, where the settings need one; where they would merely like one, it is said."""
    demanded = here.sandbox in ("container", "required") or here.stages_in == "container"
    asked = f"RATCHET_SANDBOX={here.sandbox}, RATCHET_STAGES_IN={here.stages_in}"
    if here.sandbox == "process" and not demanded:
        return Finding("containers", True, f"none is used: {asked}")
    wrong, do = _engine(here)
    if not wrong:
        return Finding("containers", True, f"the engine answers and has {_image(here)}: {asked}")
    if demanded:
        return Finding("containers", False, f"{wrong}: {asked}", f"{do}, or set {_without(here)}")
    return Finding("containers", True, f"{wrong}; agent-written code runs in processes, isolation weak: {asked}")


def _without(here: Settings) -> str:
    changes = ["RATCHET_SANDBOX=auto"] if here.sandbox in ("container", "required") else []
    return " and ".join([*changes, *(["RATCHET_STAGES_IN=process"] if here.stages_in == "container" else [])])


def _image(here: Settings) -> str:
    from ratchet.sandbox.choose import IMAGES
    from ratchet.train.device import resolve_device

    try:
        kind = resolve_device(here.device, here.threads).kind
    except InputError:  # told by `device`
        kind = "cpu"
    return here.image or IMAGES.get(kind, IMAGES["cpu"])


def _engine(here: Settings) -> tuple[str, str]:
    """What is wrong with the engine and what to do; both empty when it answers and has the image."""
    import docker
    from docker.errors import ImageNotFound

    from ratchet.sandbox.container import ENGINE_ERRORS

    try:
        client = docker.from_env(timeout=PATIENCE_S)  # pyright: ignore[reportArgumentType]
        client.ping()
        client.images.get(_image(here))
    except ImageNotFound:
        return f"the engine has no image {_image(here)}", "build it: `python containers/build.py`"
    except ENGINE_ERRORS as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        return f"no container engine answers ({first[:120]})", "start one"
    return "", ""


def remote(config: Mapping[str, Any], root: Path) -> Finding:
    """The default remote of DVC's `config`: there, and reachable without more than a short wait."""
    name = (config.get("core") or {}).get("remote")
    if not name:
        return Finding("remote", True, "none: results stay on this machine (`dvc remote add -d NAME FOLDER_OR_URL`)")
    settings: Mapping[str, Any] = (config.get("remote") or {}).get(name) or {}
    url = str(settings.get("url") or "")
    if not url:
        return Finding("remote", False, f"{name} has no url", f"`dvc remote modify {name} url FOLDER_OR_URL`")
    scheme = urlsplit(url).scheme if "://" in url else ""
    if scheme in ("", "file", "local"):
        return _folder(name, root / (urlsplit(url).path if scheme else url))
    address = address_of(str(settings.get("endpointurl") or url), scheme)
    if address is None:
        return Finding("remote", True, f"{name}, {scheme}: not asked, its address is its library's to find")
    host, port = address
    if wrong := reach(host, port):
        return Finding(
            "remote", False, f"{name} at {host}:{port} {wrong}", f"mend the network, or `dvc remote modify {name}`"
        )
    return Finding("remote", True, f"{name} at {host}:{port} takes connections")


def _folder(name: str, folder: Path) -> Finding:
    if not folder.exists() and folder.parent.is_dir():
        return Finding("remote", True, f"{name}, a folder that the first push makes: {folder}")
    if not folder.is_dir():
        return Finding(
            "remote", False, f"{name}: no folder {folder}", f"mount or make it, or `dvc remote modify {name}`"
        )
    if wrong := writable(folder):
        return Finding("remote", False, f"{name} cannot be written to, {wrong}", "mend its permissions")
    return Finding("remote", True, f"{name}, the folder {folder}, {gb(free_bytes(folder))} free")


def address_of(url: str, scheme: str) -> tuple[str, int] | None:
    """Host and port that `url` is asked at; None where the name in it is a bucket's and no host."""
    parts = urlsplit(url)
    if parts.scheme in ("gs", "azure", "oss", "gdrive", "hdfs") or not parts.hostname:
        return None
    if parts.scheme == "s3":
        return "s3.amazonaws.com", 443
    return parts.hostname, parts.port or PORTS.get(parts.scheme) or PORTS.get(scheme, 443)


def reach(host: str, port: int, patience_s: float = PATIENCE_S) -> str:
    """Why no connection to `host` comes about within `patience_s`, the look-up of its name included; else empty."""
    said: list[str] = []

    def connect() -> None:
        try:
            socket.create_connection((host, port), timeout=patience_s).close()
            said.append("")
        except OSError as error:
            said.append(f"does not answer: {error.strerror or error}")

    asking = threading.Thread(target=connect, daemon=True)  # a look-up of a name knows no time limit
    asking.start()
    asking.join(patience_s)
    return said[0] if said else f"does not answer within {patience_s:g} s"


def is_local(host: str | None) -> bool:
    """Whether an address is this machine or one beside it, which seldom asks for a key."""
    import ipaddress

    if not host or "." not in host or host.endswith((".local", ".internal")):
        return True
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return False


def wandb(here: Settings) -> Finding:
    """The mode of Weights & Biases, and whether `online` has a key. Never the key."""
    from importlib import metadata

    mode = f"RATCHET_WANDB={here.wandb}"
    if here.wandb == "disabled":
        return Finding("wandb", True, f"off: {mode}")
    try:
        version = metadata.version("wandb")
    except metadata.PackageNotFoundError:
        return Finding("wandb", False, f"not installed: {mode}", "make setup, or set RATCHET_WANDB=disabled")
    if here.wandb == "offline":
        return Finding("wandb", True, f"{version}, kept on this machine: {mode}")
    if secret("WANDB_API_KEY") is None and not _logged_in():
        do = "`wandb login`, set WANDB_API_KEY, or set RATCHET_WANDB=offline"
        return Finding("wandb", False, f"{mode}, and there is no key", do)
    where = f"{here.wandb_entity or 'your default entity'}/{here.wandb_project}"
    return Finding("wandb", True, f"{version}, sends to {where}, a key is there: {mode}")


def _logged_in() -> bool:
    import netrc

    try:
        hosts = netrc.netrc().hosts
    except (OSError, netrc.NetrcParseError):
        return False
    return any("wandb" in host for host in hosts)


def drawing() -> Finding:
    """The backend that matplotlib takes. The pictures of a report are drawn by Agg whichever it is, without a screen;
    one that there is not lets no picture be drawn at all."""
    try:
        import matplotlib
        import matplotlib.backends.backend_agg
    except (ImportError, ValueError) as error:
        return Finding("backend", False, f"matplotlib: {error}", "`make setup`; unset MPLBACKEND, or set it to Agg")
    said = f"matplotlib {matplotlib.__version__}, backend {matplotlib.get_backend()}; pictures need no screen"
    return Finding("backend", True, said)


def told(error: RatchetError, what: str) -> Finding:
    """`error` as a finding."""
    return Finding(what, False, f"{error.where}: {error.what}", error.do)
