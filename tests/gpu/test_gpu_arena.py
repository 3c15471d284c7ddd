"""What only CUDA can show of the arena: windows by flex attention, bfloat16, compile, and exact repetition."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ratchet.train.arena import Spec, check_exact_resume, load_arena, with_knobs
from ratchet.train.device import prepare_process, resolve_device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ARENA = Path(__file__).parents[2] / "arena/train.py"
TINY = {"DEPTH": 2, "HEADS": 2, "HEAD_DIM": 64, "BATCH_ROWS": 4}
VOCAB, CONTEXT = 512, 256


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    prepare_process(resolve_device("cuda"), strict=True)
    yield
    torch.use_deterministic_algorithms(before)


def arena(folder: Path, **knobs: Any) -> Any:
    path = folder / "train.py"
    path.write_text(with_knobs(ARENA.read_text(encoding="utf-8"), TINY | knobs), encoding="utf-8")
    return load_arena(path)


def spec(*, compiled: bool = False, device: str = "cuda", dtype: Any = "bfloat16") -> Spec:
    return Spec(VOCAB, CONTEXT, device, dtype, compiled, 1)


def batch() -> torch.Tensor:
    return torch.randint(0, VOCAB, (4, CONTEXT + 1), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("pattern", ["L", "SL"])
@pytest.mark.parametrize("compiled", [False, True])
def test_gpu_steps_repeat_their_bits_and_resume_exactly(tmp_path: Path, pattern: str, compiled: bool) -> None:
    module = arena(tmp_path, WINDOW_PATTERN=pattern)
    check_exact_resume(module, spec(compiled=compiled), [batch()])
    losses = [
        [float(run.step([batch()], 0.1)) for _ in range(3)] for run in (module.build(spec()), module.build(spec()))
    ]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("grouped", [1, 2])
def test_gpu_flex_window_agrees_with_a_masked_product(tmp_path: Path, grouped: int) -> None:
    module = arena(tmp_path, WINDOW_PATTERN="SL", QUERIES_PER_KEY=grouped)
    device = torch.device("cuda")
    query, key, value = (
        torch.randn((2, heads, CONTEXT, 64), device=device, generator=torch.Generator("cuda").manual_seed(heads))
        for heads in (2, 2 // grouped, 2 // grouped)
    )
    found = module.attend(query, key, value, module.window_mask(CONTEXT, 64, device))
    mask = module.window_mask(CONTEXT, 64, torch.device("cpu")).to(device)
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=grouped > 1)
    torch.testing.assert_close(found, expected, atol=2e-2, rtol=2e-2)


def test_gpu_logits_are_near_those_of_the_cpu(tmp_path: Path) -> None:
    module = arena(tmp_path, WINDOW_PATTERN="SL")
    on_gpu, on_cpu = module.build(spec()), module.build(spec(device="cpu", dtype="float32"))
    on_gpu.step([batch()], 0.0)
    on_cpu.load_state_dict({name: value.cpu() for name, value in on_gpu.state_dict().items()})
    tokens = batch()[:, :-1]
    torch.testing.assert_close(on_gpu.logits(tokens.cuda()).cpu(), on_cpu.logits(tokens), atol=0.1, rtol=0.05)


def test_gpu_step_never_holds_float32_logits_of_the_whole_batch(tmp_path: Path) -> None:
    module = arena(tmp_path, BATCH_ROWS=128)
    module.LOSS_CHUNK = {"cuda": 1024}
    experiment = module.build(Spec(32768, CONTEXT, "cuda", "bfloat16", False, 1))
    rows = torch.randint(0, 32768, (128, CONTEXT + 1), generator=torch.Generator().manual_seed(0))
    experiment.step([rows], 0.0)
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    experiment.step([rows], 0.1)
    assert torch.cuda.max_memory_allocated() - held < 128 * CONTEXT * 32768 * 4  # bytes of such logits
