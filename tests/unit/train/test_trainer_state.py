"""Tensors and generators to a file and back, exactly, without touching any generator."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from ratchet.core.errors import InputError
from ratchet.train.device import resolve_device
from ratchet.train.training_state import (
    capture_generators,
    load_tensors,
    read_generators,
    restore_generators,
    same,
    save_tensors,
    seed_generators,
    split_state,
    write_generators,
)

CPU = resolve_device("cpu", 1)


def test_tensors_of_every_kind_come_back_bit_for_bit(tmp_path: Path) -> None:
    weight = torch.randn(4, 6)
    tensors = {
        "model.scalar": torch.tensor(3, dtype=torch.int64),
        "model.half": torch.randn(3).bfloat16(),
        "model.transposed": weight.mT,
        "model.view": weight[1],
        "model.tied": weight,
        "model.tied_too": weight,
        "model.odd": torch.tensor([float("nan"), -0.0, float("inf")]),
        "model.empty": torch.zeros(0, 4),
    }
    save_tensors(tmp_path / "x", tensors)
    assert same(load_tensors(tmp_path / "x"), tensors)
    assert not same(tensors, tensors | {"model.odd": torch.tensor([float("nan"), 0.0, float("inf")])})


def test_load_tensors_truncated_file_is_an_input_error(tmp_path: Path) -> None:
    save_tensors(tmp_path / "x", {"model.w": torch.ones(100)})
    (tmp_path / "x").write_bytes((tmp_path / "x").read_bytes()[:-7])
    with pytest.raises(InputError, match="no readable safetensors file"):
        load_tensors(tmp_path / "x")


def test_save_tensors_into_a_missing_folder_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        save_tensors(tmp_path / "nowhere" / "x", {"model.w": torch.ones(2)})


def test_split_state_stray_name_is_an_input_error() -> None:
    with pytest.raises(InputError, match="holds 'weights'; begin each name"):
        split_state({"model.a": torch.ones(1), "weights": torch.ones(1)})


def draws() -> list[float]:
    return [
        random.random(),
        random.gauss(0, 1),
        float(np.random.rand()),
        float(np.random.randn()),
        float(torch.rand(())),
    ]


def test_generators_come_back_through_a_file(tmp_path: Path) -> None:
    seed_generators(5)
    draws()  # an odd number of normals: both generators now hold one back
    state = capture_generators(CPU)
    write_generators(tmp_path / "r", state)
    first = draws()
    assert draws() != first
    restore_generators(read_generators(tmp_path / "r"), CPU)
    assert draws() == first


def test_capture_and_save_advance_no_generator(tmp_path: Path) -> None:
    seed_generators(5)
    expected = draws()
    seed_generators(5)
    write_generators(tmp_path / "r", capture_generators(CPU))
    save_tensors(tmp_path / "x", {"model.w": torch.ones(100)})
    assert draws() == expected


def test_seed_generators_gives_each_its_own_stream() -> None:
    seed_generators(1)
    one = json.dumps(capture_generators(CPU))
    seed_generators(2)
    assert json.dumps(capture_generators(CPU)) != one
