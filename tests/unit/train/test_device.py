"""Devices by name, dtypes, threads within the cpuset, and an allocator that leaves the bits alone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from ratchet.core.errors import InputError
from ratchet.train import device as devices
from ratchet.train.device import Device, available_cpus, peak_flops, resolve_device, resolve_dtype

GPU = Device("cuda", 1, "NVIDIA H100", "sm_90", 4)


def test_resolve_device_auto_without_a_gpu_is_the_cpu() -> None:
    device = resolve_device("auto", 1)
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert (device.kind, device.threads) == (expected, 1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
@pytest.mark.parametrize("choice", ["cuda", "cuda:3"])
def test_resolve_device_missing_gpu_asked_for_by_name_is_an_input_error(choice: str) -> None:
    with pytest.raises(
        InputError, match=rf"'{choice}' asked for, but torch .* finds 0 CUDA devices; set RATCHET_DEVICE"
    ):
        resolve_device(choice)


def test_resolve_device_index_that_is_not_there_is_an_input_error() -> None:
    with pytest.raises(InputError, match="'cuda:99' asked for"):
        resolve_device("cuda:99")


@pytest.mark.parametrize("choice", ["gpu", "cpu:1", "cuda:x", ""])
def test_resolve_device_unknown_name_is_an_input_error(choice: str) -> None:
    with pytest.raises(InputError, match=f"RATCHET_DEVICE='{choice}' is no device"):
        resolve_device(choice)


def test_resolve_device_more_threads_than_the_cpuset_are_cut() -> None:
    assert resolve_device("cpu", 10_000).threads == available_cpus()
    assert resolve_device("cpu").threads == available_cpus()


def test_available_cpus_counts_the_cpuset_not_the_machine() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert available_cpus() == resolve_device("cpu", 2).threads == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_resolve_dtype_auto_is_bfloat16_only_in_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = resolve_device("cpu", 1)
    for flags, expected in ((frozenset({"avx2"}), "float32"), (frozenset({"avx2", "avx512_bf16"}), "bfloat16")):
        monkeypatch.setattr(devices, "_cpu_flags", lambda flags=flags: flags)
        assert resolve_dtype("auto", cpu) == expected
    assert resolve_dtype("auto", GPU) == "bfloat16"
    assert resolve_dtype("auto", Device("cuda", 0, "V100", "sm_70", 1)) == "float32"
    assert resolve_dtype("bfloat16", cpu) == "bfloat16"


def test_identity_of_a_gpu_holds_neither_its_index_nor_the_threads() -> None:
    identity = GPU.identity("bfloat16")
    assert identity == Device("cuda", 0, "another name", "sm_90", 64).identity("bfloat16")
    assert "threads" in resolve_device("cpu", 1).identity("float32")


@pytest.mark.slow
def test_prepare_process_keeps_the_bits_and_sets_threads_and_cublas() -> None:
    """A matrix product and its gradient before and after: the allocator and the settings change no bit on the CPU."""
    script = """
import os, torch
from ratchet.train.device import prepare_process, resolve_device, tune_allocator
torch.set_num_threads(1)
def bits():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 300, generator=generator, requires_grad=True)
    (x @ x).softmax(-1).square().sum().backward()
    return x.grad
before = bits()
torch.set_num_threads(2)
prepare_process(resolve_device("cpu", 1), strict=False)
print(torch.get_num_threads(), torch.equal(before, bits()), os.environ["CUBLAS_WORKSPACE_CONFIG"])
print(torch.are_deterministic_algorithms_enabled())
prepare_process(resolve_device("cpu", 1), strict=True)
print(torch.are_deterministic_algorithms_enabled())
print(tune_allocator() or not os.path.exists("/lib/x86_64-linux-gnu/libc.so.6"))
"""
    clean = {name: value for name, value in os.environ.items() if name != "CUBLAS_WORKSPACE_CONFIG"}
    done = subprocess.run([sys.executable, "-c", script], check=True, env=clean, timeout=120, stdout=subprocess.PIPE)
    assert done.stdout.decode().split() == ["1", "True", ":4096:8", "False", "True", "True"]


@pytest.mark.parametrize("headers", ["torch", "python"])
def test_check_compiler_in_a_path_with_blanks_is_an_input_error_on_the_cpu_alone(
    monkeypatch: pytest.MonkeyPatch, headers: str
) -> None:
    monkeypatch.setattr(torch, "__file__", "/no-blank/torch/__init__.py")
    monkeypatch.setattr(devices.sysconfig, "get_path", lambda _: "/no-blank/include")
    devices.check_compiler(resolve_device("cpu", 1))
    if headers == "torch":
        monkeypatch.setattr(torch, "__file__", "/my project/torch/__init__.py")
    else:
        monkeypatch.setattr(devices.sysconfig, "get_path", lambda _: "/my project/include")
    with pytest.raises(InputError, match=r"train\.compile: true, but .* '/my project/.*': .* blanks; set it to false"):
        devices.check_compiler(resolve_device("cpu", 1))
    devices.check_compiler(GPU)


def test_peak_flops_is_published_or_measured() -> None:
    assert peak_flops(GPU, "bfloat16") == 989.4e12
    torch.manual_seed(1)
    state = torch.get_rng_state()
    assert 1e8 < peak_flops(resolve_device("cpu", 1), "float32") < 1e14
    assert torch.equal(state, torch.get_rng_state())
