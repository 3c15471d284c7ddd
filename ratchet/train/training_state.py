"""What a training is made of when it is not running: tensors and random generators, to a file and back, exactly.

Knows safetensors and the generators of Python, NumPy and torch; no pickle anywhere. Refuses to know when state is
saved. Taking and writing a state advances no generator.
"""

from __future__ import annotations

import base64
import json
import os
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ratchet.core.errors import InputError
from ratchet.core.seeds import derive
from ratchet.train.device import Device

Tensors = dict[str, torch.Tensor]

MODEL_FILE, OPTIMIZER_FILE, RANDOM_FILE = "model.safetensors", "optimizer.safetensors", "random.json"


def split_state(state: Mapping[str, torch.Tensor]) -> tuple[Tensors, Tensors]:
    """An experiment's state as (model, optimizer). Raises InputError for a name that belongs to neither."""
    model = {name: tensor for name, tensor in state.items() if name.startswith("model.")}
    optimizer = {name: tensor for name, tensor in state.items() if name.startswith("optimizer.")}
    strays = sorted(state.keys() - model.keys() - optimizer.keys())
    if strays:
        raise InputError("arena", f"state_dict() holds {strays[0]!r}", "begin each name with `model.` or `optimizer.`")
    return model, optimizer


def save_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write named tensors as safetensors, bit for bit; two names of one storage become two copies.

    Raises OSError, a full disk included.
    """
    seen: set[int] = set()
    plain: Tensors = {}
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous()
        storage = flat.untyped_storage().data_ptr()
        plain[name] = flat.clone() if storage in seen or flat.untyped_storage().nbytes() != flat.nbytes else flat
        seen.add(storage)
    try:
        save_file(plain, path)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from None


def load_tensors(path: Path, device: str = "cpu") -> Tensors:
    """The tensors `save_tensors` wrote, on `device`. Raises InputError when the file is none of its."""
    try:
        return load_file(path, device=device)
    except (SafetensorError, OSError) as error:
        raise InputError(
            path, f"no readable safetensors file ({error})", "take an older checkpoint: --resume auto"
        ) from None


def clone(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """A copy that later steps cannot change."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    """Whether both hold the same names, shapes, dtypes and bits (a NaN equals itself)."""
    return one.keys() == other.keys() and all(_same_bits(one[name], other[name]) for name in one)


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(
        a.detach().contiguous().reshape(-1).view(torch.uint8), b.detach().contiguous().reshape(-1).view(torch.uint8)
    )


def seed_generators(seed: int) -> None:
    """Seed the global generators of Python, NumPy and torch (every device) from one number, each with its own."""
    random.seed(derive(seed, "python"))
    np.random.seed(derive(seed, "numpy") % 2**32)
    torch.manual_seed(derive(seed, "torch"))


def capture_generators(device: Device) -> dict[str, Any]:
    """The global generators' states as JSON: Python, NumPy, torch CPU, every CUDA device (the one in use first)."""
    version, words, gauss = random.getstate()
    numpy_state: Any = np.random.get_state(legacy=False)
    numpy_state["state"]["key"] = numpy_state["state"]["key"].tolist()
    return {
        "python": [version, list(words), gauss],
        "numpy": numpy_state,
        "torch": _encode(torch.get_rng_state()),
        "cuda": [_encode(torch.cuda.get_rng_state(index)) for index in _cuda_order(device)],
    }


def restore_generators(state: Mapping[str, Any], device: Device) -> None:
    """Put back what `capture_generators` took. States of CUDA devices that are not here are left out."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    numpy_state = {**state["numpy"], "state": {**state["numpy"]["state"]}}
    numpy_state["state"]["key"] = np.array(numpy_state["state"]["key"], dtype=np.uint32)
    np.random.set_state(numpy_state)
    torch.set_rng_state(_decode(state["torch"]))
    for index, text in zip(_cuda_order(device), state["cuda"], strict=False):
        torch.cuda.set_rng_state(_decode(text), index)


def write_generators(path: Path, state: Mapping[str, Any]) -> None:
    """Write captured generators as JSON."""
    path.write_text(json.dumps(state))


def read_generators(path: Path) -> dict[str, Any]:
    """Read what `write_generators` wrote."""
    return json.loads(path.read_text())


def _cuda_order(device: Device) -> list[int]:
    """CUDA devices, the one in use first, so that a run moved to another index continues its own stream."""
    if device.kind != "cuda":
        return []
    return [device.index, *(index for index in range(torch.cuda.device_count()) if index != device.index)]


def _encode(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode()


def _decode(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
