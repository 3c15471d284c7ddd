"""The machine a training process computes on: device, dtype, threads, allocator, deterministic arithmetic.

Knows torch's devices; refuses to know models and data. What it resolves enters a run's identity (`Device.identity`),
because other hardware, dtypes and thread counts give other bytes; the device *index* does not.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import resource
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import torch

from ratchet.core.errors import InputError
from ratchet.data.encoding import available_cpus
from ratchet.settings import set_in_this_process, settings

Dtype = Literal["float32", "bfloat16"]
DtypeChoice = Literal["auto", "float32", "bfloat16"]

NATIVE_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""CPU flags that mean bfloat16 products in hardware; without one they are emulated (10 against 85 GFLOP/s measured)."""

PUBLISHED_TFLOPS = {"H200": 989.4, "H100": 989.4, "A100": 311.9, "L40S": 362.0, "RTX 4090": 165.2}
"""Dense bfloat16 peaks from the vendors' data sheets, by a part of the device's name; all others are measured."""

STATM = Path("/proc/self/statm")

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # malloc.h of glibc
TOP_PAD_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True)
class Device:
    """One resolved device; `capability` is the CPU's vector set or the GPU's sm number."""

    kind: Literal["cpu", "cuda", "mps"]
    index: int
    name: str
    capability: str
    threads: int
    ranks: int = 1
    """Processes that share one training: another number sums gradients in another order."""

    @property
    def torch_name(self) -> str:
        """`cpu`, `mps` or `cuda:INDEX`."""
        return f"cuda:{self.index}" if self.kind == "cuda" else self.kind

    def identity(self, dtype: Dtype) -> dict[str, str | int]:
        """What of this device decides the bytes of a result: everything but index and product name."""
        threads = {"threads": self.threads} if self.kind == "cpu" else {}
        ranks = {"ranks": self.ranks} if self.ranks > 1 else {}
        versions = {"capability": self.capability, "torch": torch.__version__}
        return {"kind": self.kind, **versions, "dtype": dtype, **threads, **ranks}


def resolve_device(choice: str = "auto", threads: int = 0) -> Device:
    """The device `choice` names: auto, cpu, cuda, cuda:INDEX or mps; auto takes CUDA when there is one.

    `threads`: CPU threads, 0 = all the cpuset allows; more than it allows are cut to it, since one thread more than
    there are CPUs costs most of the speed. Raises InputError when a device asked for by name is not there.
    """
    threads = min(threads or available_cpus(), available_cpus())
    kind, _, index = choice.partition(":")
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cpu" and not index:
        return Device("cpu", 0, platform.processor() or platform.machine(), _cpu_capability(), threads)
    if kind == "cuda" and (not index or index.isdecimal()):
        return _cuda(choice, int(index or 0), threads)
    if kind == "mps" and not index:
        if not torch.backends.mps.is_available():
            raise InputError("device", "'mps' asked for, but torch finds none", "set RATCHET_DEVICE=cpu or auto")
        return Device("mps", 0, platform.machine(), "mps", threads)
    raise InputError("device", f"RATCHET_DEVICE={choice!r} is no device", "use auto, cpu, cuda, cuda:INDEX or mps")


def shared(device: Device, ranks: int, local: int = 0) -> Device:
    """What rank `local` of `ranks` on this machine computes on: the card so many after `device`, or its part of the
    CPUs. Raises InputError when there are too few cards."""
    if ranks == 1:
        return device
    if device.kind == "mps":
        raise InputError("device", f"{ranks} ranks on mps, which is one device", "set RATCHET_RANKS=1")
    if device.kind == "cuda":
        device = _cuda(f"cuda:{device.index + local}", device.index + local, device.threads)
    return replace(device, threads=max(1, min(device.threads, available_cpus() // ranks)), ranks=ranks)


def _cuda(choice: str, index: int, threads: int) -> Device:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if index >= count:
        found = f"torch {torch.__version__} finds {count} CUDA device{'s' * (count != 1)}"
        raise InputError(
            "device", f"{choice!r} asked for, but {found}", "set RATCHET_DEVICE=cpu or auto, or mend the driver"
        )
    major, minor = torch.cuda.get_device_capability(index)
    return Device("cuda", index, torch.cuda.get_device_name(index), f"sm_{major}{minor}", threads)


def used_machine() -> dict[str, Any]:
    """Device and threads that the settings come to, for the provenance of a stage that computes on them."""
    device = resolve_device(settings().device, settings().threads)
    return {"device": f"{device.kind} ({device.name})", "threads": device.threads}


def _cpu_capability() -> str:
    return torch.backends.cpu.get_cpu_capability()


def resolve_dtype(choice: DtypeChoice, device: Device) -> Dtype:
    """The dtype of matrix products; `auto` is bfloat16 in hardware (CUDA from sm_80, some CPUs), else float32."""
    if choice != "auto":
        return choice
    if device.kind == "cuda":
        return "bfloat16" if int(device.capability.removeprefix("sm_")) >= 80 else "float32"
    return "bfloat16" if device.kind == "cpu" and NATIVE_BFLOAT16 & _cpu_flags() else "float32"


def _cpu_flags() -> frozenset[str]:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(errors="replace").splitlines() if cpuinfo.exists() else []
    return frozenset(" ".join(line for line in lines if line.lower().startswith(("flags", "features"))).split())


def check_compiler(device: Device) -> None:
    """Raise InputError where torch could compile nothing for `device`: it hands its header folders to g++ unquoted."""
    headers = (str(Path(torch.__file__).parent), sysconfig.get_path("include"))
    blank = next((path for path in headers if len(path.split()) > 1), None)
    if device.kind == "cpu" and blank:
        what = f"true, but torch cannot compile with the headers in {blank!r}: that path has blanks"
        raise InputError("train.compile", what, "set it to false, or move the project to a path without blanks")


def prepare_process(device: Device, *, strict: bool) -> None:
    """Set this process' threads, allocator and deterministic arithmetic; call before the first tensor is made.

    Deterministic algorithms are demanded where the default ones differ from run to run: on CUDA, and on the CPU where
    the caller is `strict`: for compiled code (two threads, measured; about 1 % of the time) and for code that gathers
    one row several times, whose gradient threads add up in any order. Other eager CPU code is bit-identical without.
    """
    set_in_this_process("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read by cuBLAS when it starts
    tune_allocator()
    torch.set_num_threads(device.threads)
    if (strict or device.kind == "cuda") != torch.are_deterministic_algorithms_enabled():
        # not called when nothing changes: the call imports the compiler, 3 s
        torch.use_deterministic_algorithms(not torch.are_deterministic_algorithms_enabled())
    if device.kind == "cuda":
        torch.cuda.set_device(device.index)
        torch.backends.cudnn.benchmark = False


def tune_allocator() -> bool:
    """Keep freed memory in the process instead of giving it back on every step; True where it took effect (glibc).

    By default glibc maps each large tensor anew and unmaps it when freed, and the page faults cost a third of a CPU
    training step. Bytes are untouched. Setting it here rather than in the environment needs no second exec.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    wanted = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: 2**31 - 1, M_TOP_PAD: TOP_PAD_BYTES}
    return all(mallopt(option, value) == 1 for option, value in wanted.items())


def synchronize(device: Device) -> None:
    """Wait until the device has done what was asked of it, so that a clock reads the work and not the queue."""
    if device.kind == "cuda":
        torch.cuda.synchronize(device.index)
    elif device.kind == "mps":
        torch.mps.synchronize()


def peak_memory_mb(device: Device) -> float:
    """Peak MiB so far: of tensors on CUDA, of the resident process elsewhere."""
    if device.kind == "cuda":
        return torch.cuda.max_memory_allocated(device.index) / 2**20
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def memory_mb(device: Device) -> float:
    """MiB in use now: by tensors on CUDA, by the resident process elsewhere (its peak where there is no /proc)."""
    if device.kind == "cuda":
        return torch.cuda.memory_allocated(device.index) / 2**20
    try:
        pages = int(STATM.read_text().split()[1])
    except FileNotFoundError:
        return peak_memory_mb(device)
    return pages * resource.getpagesize() / 2**20


@contextmanager
def exclusive(device: Device) -> Iterator[None]:
    """Hold a CUDA device alone among Ratchet's processes on this machine, waiting for it; nothing to hold elsewhere.
    The cards of a device that ranks share are held together, in the order of their numbers.

    The lock is the kernel's, so it ends with its holder, whatever ends that.
    """
    with ExitStack() as held:
        for index in range(device.index, device.index + device.ranks) if device.kind == "cuda" else ():
            held.enter_context(_card(replace(device, index=index)))
        yield


@contextmanager
def _card(device: Device) -> Iterator[None]:
    """Hold one card."""
    unit = torch.cuda.get_device_properties(device.index).uuid
    path = Path(tempfile.gettempdir()) / f"ratchet-gpu-{unit}.lock"
    with open(os.open(path, os.O_RDWR | (0 if path.exists() else os.O_CREAT), 0o666), "r+") as file:  # noqa: PTH123
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for {device.name}, which another Ratchet process holds ({path})", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def peak_flops(device: Device, dtype: Dtype) -> float:
    """Floating-point operations per second the device can do: published where known, else measured by a matrix product.

    The base of `mfu_percent`. Measuring takes about 0.1 s and draws no random numbers.
    """
    if dtype == "bfloat16" and device.kind == "cuda":
        for part, tflops in PUBLISHED_TFLOPS.items():
            if part in device.name:
                return tflops * 1e12
    size = 768 if device.kind == "cpu" else 4096
    matrix = torch.ones(size, size, device=device.torch_name, dtype=getattr(torch, dtype))
    best = float("inf")
    for _ in range(3):
        start = perf_counter()
        torch.mm(matrix, matrix)
        synchronize(device)
        best = min(best, perf_counter() - start)
    return 2 * size**3 / best
