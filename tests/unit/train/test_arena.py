"""The shipped arena and the check of its protocol: arithmetic against plain torch, exact state, clear refusals."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ratchet.core.errors import InputError
from ratchet.train.arena import (
    Spec,
    build_experiment,
    check_exact_resume,
    check_loss,
    load_arena,
    with_knobs,
)

ARENA = Path(__file__).parents[3] / "arena/train.py"
TINY = {"DEPTH": 2, "HEADS": 2, "HEAD_DIM": 16, "BATCH_ROWS": 2}
VOCAB, CONTEXT = 300, 32


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def arena(folder: Path, **knobs: Any) -> ModuleType:
    source = with_knobs(ARENA.read_text(encoding="utf-8"), TINY | knobs)
    path = folder / "train.py"
    path.write_text(source, encoding="utf-8")
    return load_arena(path)


def spec(dtype: Any = "float32", seed: int = 1, compiled: bool = False) -> Spec:
    return Spec(VOCAB, CONTEXT, "cpu", dtype, compiled, seed)


def batches(count: int = 1, rows: int = 2, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, VOCAB, (rows, CONTEXT + 1), generator=generator) for _ in range(count)]


def perturb(experiment: Any) -> None:
    """Move every parameter off its initial zeros, so that each gradient is a number."""
    generator = torch.Generator().manual_seed(3)
    for weight in experiment.model.parameters():
        weight.data.add_(0.02 * torch.randn(weight.shape, generator=generator))


def test_default_arena_at_8192_ids_has_the_published_size() -> None:
    experiment = build_experiment(load_arena(ARENA), Spec(8192, 256, "cpu", "float32", False, 1))
    assert round(experiment.num_params() / 1e6, 2) == 11.53
    assert experiment.batch_rows * 256 * experiment.accumulation == 4096
    assert experiment.flops_per_token() == 6 * (4 * 12 * 256**2 + 2 * 2 * 32 + 8192 * 256) + 12 * 4 * 256 * 256


def test_arena_file_imports_only_torch_and_the_standard_library() -> None:
    lines = [line.split() for line in ARENA.read_text().splitlines() if line.startswith(("import ", "from "))]
    assert {words[1].partition(".")[0] for words in lines} <= {
        "__future__",
        "collections",
        "functools",
        "itertools",
        "typing",
        "torch",
    }
    assert len(ARENA.read_text().splitlines()) <= 400


@pytest.mark.parametrize("seed", [1, 2**63 - 1])
def test_build_with_one_seed_is_the_same_and_with_another_is_not(tmp_path: Path, seed: int) -> None:
    module = arena(tmp_path)
    torch.manual_seed(5)
    first = module.build(spec(seed=seed)).state_dict()
    state = torch.random.get_rng_state()
    second, other = (module.build(spec(seed=number)).state_dict() for number in (seed, 7))
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert not torch.equal(first["model.embedding"], other["model.embedding"])
    assert torch.equal(state, torch.random.get_rng_state())  # torch's own generator is not drawn from


@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"ACCUMULATION": 2},
        {"WINDOW_PATTERN": "SL", "QUERIES_PER_KEY": 2},
        {"VALUE_EMBEDDINGS": "none", "WARMUP": 0.2},
    ],
)
def test_step_after_save_and_load_equals_the_step_of_the_unsaved_run(tmp_path: Path, knobs: dict[str, Any]) -> None:
    module = arena(tmp_path, **knobs)
    rows = batches(module.ACCUMULATION)
    check_exact_resume(module, spec(), rows)
    saved, other = module.build(spec()), module.build(spec(seed=9))
    saved.step(rows, 0.1)
    other.load_state_dict({name: value.clone() for name, value in saved.state_dict().items()})
    assert float(saved.step(rows, 0.5)) == float(other.step(rows, 0.5))
    loaded = other.state_dict()
    assert [name for name, value in saved.state_dict().items() if not torch.equal(value, loaded[name])] == []


@pytest.mark.parametrize("forgotten", ["optimizer.steps", "optimizer.momentum.32x32", "optimizer.exp_avg.embedding"])
def test_exact_resume_of_an_arena_that_forgets_a_tensor_is_refused(tmp_path: Path, forgotten: str) -> None:
    module = arena(tmp_path)
    whole = module.Experiment.state_dict

    def forgetful(self: Any) -> dict[str, torch.Tensor]:
        return {name: value for name, value in whole(self).items() if name != forgotten}

    module.Experiment.state_dict = forgetful
    with pytest.raises(InputError, match="differs from the run that was never saved"):
        check_exact_resume(module, spec(), batches())


def test_load_of_the_model_part_alone_gives_the_same_logits(tmp_path: Path) -> None:
    module = arena(tmp_path)
    trained, fresh = module.build(spec()), module.build(spec(seed=9))
    trained.step(batches(), 0.0)
    fresh.load_state_dict({name: value for name, value in trained.state_dict().items() if name.startswith("model.")})
    tokens = batches()[0][:, :-1]
    assert torch.equal(trained.logits(tokens), fresh.logits(tokens))


def test_load_of_a_state_with_other_names_or_shapes_is_refused(tmp_path: Path) -> None:
    experiment = arena(tmp_path).build(spec())
    state = experiment.state_dict()
    with pytest.raises(KeyError, match=r"model\.extra"):
        experiment.load_state_dict(state | {"model.extra": torch.zeros(1)})
    with pytest.raises(KeyError, match=r"model\.embedding"):
        experiment.load_state_dict(state | {"model.embedding": torch.zeros(1)})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [2, 5])
def test_loss_and_gradients_equal_those_of_plain_autograd_bit_for_bit(tmp_path: Path, rows: int, dtype: str) -> None:
    module = arena(tmp_path)
    module.LOSS_CHUNK = {"cpu": 48}  # a last chunk that is not whole
    ours, plain = module.build(spec(dtype)), module.build(spec(dtype))
    perturb(ours)
    perturb(plain)
    batch = batches(rows=rows)[0]
    loss = ours._backward(batch)

    def published_rotation(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        (left, right), (cos, sin) = x.chunk(2, -1), (table[..., : table.size(-1) // 2] for table in (cos, sin))
        turned = torch.cat((left * cos + right * sin, right * cos - left * sin), -1)
        return F.rms_norm(turned, (turned.size(-1),))

    module.SquaredReLU = type("Plain", (), {"apply": staticmethod(lambda x: F.relu(x).square())})
    module.NormedRotation = type("Plain", (), {"apply": staticmethod(published_rotation)})
    x_BTD = plain.model(batch[:, :-1], plain.masks(CONTEXT))
    logits = module.SOFT_CAP * torch.tanh(module.linear(x_BTD, plain.model.head).float() / module.SOFT_CAP)
    expected = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].reshape(-1))
    expected.backward()

    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for (name, mine), other in zip(ours.model.named_parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(mine.grad, other.grad), name


def test_accumulation_over_two_batches_equals_one_batch_of_both_closely(tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    one, two = arena(tmp_path).build(spec()), arena(tmp_path / "two", ACCUMULATION=2).build(spec())
    parts = batches(2)
    losses = [one.step([torch.cat(parts)], 0.0), two.step(parts, 0.0)]
    torch.testing.assert_close(losses[0], losses[1])
    assert one.metrics()["grad_norm"] == pytest.approx(two.metrics()["grad_norm"], rel=1e-5)


@pytest.mark.parametrize("pattern", ["L", "SL"])
def test_logits_do_not_move_when_a_later_token_does(tmp_path: Path, pattern: str) -> None:
    experiment = arena(tmp_path, WINDOW_PATTERN=pattern).build(spec())
    perturb(experiment)
    tokens = batches()[0][:, :-1]
    changed = tokens.clone()
    changed[:, 20:] = (changed[:, 20:] + 1) % VOCAB
    before, after = experiment.logits(tokens), experiment.logits(changed)
    assert torch.equal(before[:, :20], after[:, :20])
    assert not torch.equal(before[:, 20:], after[:, 20:])
    assert before.dtype == torch.float32
    assert before.abs().max() <= 15


def test_window_mask_lets_a_position_see_itself_and_the_window_before_it(tmp_path: Path) -> None:
    module = arena(tmp_path, WINDOW_PATTERN="SSSL", DEPTH=6)
    assert module.windows(8) == [4, 4, 4, 8, 4, 8]
    mask = module.window_mask(8, 3, torch.device("cpu"))
    assert mask[5].tolist() == [False, False, False, True, True, True, False, False]
    assert module.window_mask(8, 8, torch.device("cpu")) is None


def test_window_of_one_layer_bounds_how_far_the_logits_see(tmp_path: Path) -> None:
    module = arena(tmp_path, WINDOW_PATTERN="SL", DEPTH=1)
    module.windows = lambda length: [length // 2]  # a single short layer: no full one behind it
    experiment = module.build(spec())
    perturb(experiment)
    tokens = batches()[0][:, :-1]
    changed = tokens.clone()
    changed[:, 0] = (changed[:, 0] + 1) % VOCAB
    moved = (experiment.logits(tokens) != experiment.logits(changed)).any(-1).any(0)
    assert moved[: CONTEXT // 2].all()
    assert not moved[CONTEXT // 2 :].any()


def test_polar_of_a_stack_is_orthogonal_and_equals_one_by_one(tmp_path: Path) -> None:
    module = arena(tmp_path)
    for shape in ((3, 16, 16), (3, 32, 16), (3, 16, 64)):
        stack = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        result = module.polar(stack)
        singular = torch.linalg.svdvals(result)
        assert singular.min() > 0.7
        assert singular.max() < 1.3
        assert torch.equal(result, torch.stack([module.polar(single[None])[0] for single in stack]))


def test_schedule_rises_holds_and_falls(tmp_path: Path) -> None:
    module = arena(tmp_path, WARMUP=0.2, WARMDOWN=0.5, FINAL_LR=0.1)
    scales = [module.schedule(progress) for progress in (0.0, 0.1, 0.2, 0.49, 0.75, 1.0)]
    assert scales == pytest.approx([0.0, 0.5, 1.0, 1.0, 0.55, 0.1])
    experiment = module.build(spec())
    experiment.step(batches(), 0.1)
    assert experiment.metrics()["lr_scale"] == pytest.approx(0.5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_first_step_does_not_move_the_scales_by_the_sign_of_a_rounding_error(tmp_path: Path, dtype: str) -> None:
    """All blocks output zero, so the final norm takes out what a scale does: what is left of its gradient is noise."""
    experiment = arena(tmp_path).build(spec(dtype))
    scales = experiment.model.stream_scale.detach(), experiment.model.skip_scale.detach()
    experiment.step(batches(), 0.0)
    assert [scale.tolist() for scale in scales] == [
        pytest.approx([1.0] * 2, abs=2e-4),
        pytest.approx([0.1] * 2, abs=0.02),
    ]
    for step in range(1, 4):
        experiment.step(batches(), step / 10)
    assert (scales[1] - 0.1).abs().min() > 0.05  # later gradients are real and do move them


def test_loss_of_ten_steps_on_one_batch_falls(tmp_path: Path) -> None:
    experiment = arena(tmp_path).build(spec())
    losses = [float(check_loss(experiment.step(batches(), step / 10))) for step in range(10)]
    assert losses[0] == pytest.approx(torch.tensor(float(VOCAB)).log().item(), abs=0.05)
    assert losses[-1] < losses[0] - 2


def test_bfloat16_gradients_agree_with_float32_ones(tmp_path: Path) -> None:
    module = arena(tmp_path)
    exact, rough = module.build(spec()), module.build(spec("bfloat16"))
    perturb(exact)
    perturb(rough)
    assert float(exact._backward(batches()[0])) == pytest.approx(float(rough._backward(batches()[0])), abs=0.02)
    for (name, mine), other in zip(exact.model.named_parameters(), rough.model.parameters(), strict=True):
        cosine = F.cosine_similarity(mine.grad.flatten(), other.grad.flatten(), dim=0)
        assert cosine > 0.98, name


@pytest.mark.slow
@pytest.mark.skipif(len(sys.prefix.split()) > 1, reason="needs a path without blanks")
@pytest.mark.timeout(900)  # a cold compiler on a busy machine took 285 s
def test_compiled_step_repeats_its_own_bits_and_stays_near_eager(tmp_path: Path) -> None:
    module = arena(tmp_path, DEPTH=1)
    torch.use_deterministic_algorithms(True)
    try:
        runs = []
        for compiled in (True, True, False):
            experiment = module.build(spec(compiled=compiled))
            losses = [float(experiment.step(batches(), step / 3)) for step in range(3)]
            runs.append((losses, experiment.state_dict()))
    finally:
        torch.use_deterministic_algorithms(False)
    assert runs[0][0] == runs[1][0]
    assert all(torch.equal(value, runs[1][1][name]) for name, value in runs[0][1].items())
    assert runs[0][0] == pytest.approx(runs[2][0], abs=0.02)


def test_build_of_heads_that_do_not_group_is_refused_in_one_line(tmp_path: Path) -> None:
    module = arena(tmp_path, HEADS=3, QUERIES_PER_KEY=2)
    with pytest.raises(InputError, match=r"HEADS=3 is no multiple of QUERIES_PER_KEY=2; choose knobs"):
        build_experiment(module, spec())


@pytest.mark.parametrize(
    ("member", "value", "says"),
    [
        ("batch_rows", 0, "batch_rows is 0"),
        ("accumulation", True, "accumulation is True"),
        ("metrics", None, "has no method metrics()"),
        ("num_params", lambda _self: 0, "num_params() is 0"),
        ("flops_per_token", lambda _self: float("nan"), "flops_per_token() is nan"),
        ("state_dict", lambda _self: {"weights": torch.zeros(1)}, "state_dict() holds 'weights'"),
        ("state_dict", lambda _self: {"model.x": 3}, "state_dict() holds 'model.x': int"),
        ("logits", lambda _self, tokens: tokens.float(), "has the shape [1, 32], not [1, 32, 300]"),
    ],
)
def test_check_of_an_experiment_that_breaks_a_promise_names_it(
    tmp_path: Path, member: str, value: Any, says: str
) -> None:
    module = arena(tmp_path)
    setattr(module.Experiment, member, value)
    with pytest.raises(InputError) as caught:
        build_experiment(module, spec())
    assert says in str(caught.value)
    assert str(caught.value).endswith("see docs/arena.md for the protocol")


@pytest.mark.parametrize(
    ("loss", "says"),
    [(1.5, "a float"), (torch.zeros(2), "shape [2]"), (torch.zeros((), requires_grad=True), "attached to the graph")],
)
def test_check_loss_of_what_is_no_detached_scalar_is_refused(loss: Any, says: str) -> None:
    with pytest.raises(InputError) as caught:
        check_loss(loss, "arena.py")
    assert says in str(caught.value)


def test_load_arena_of_bad_files_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "mein Arena ü.py"
    with pytest.raises(InputError, match="no such arena"):
        load_arena(path)
    path.write_text("def build(spec):\n    return (\n")
    with pytest.raises(InputError, match=r"ü\.py:2: no Python"):
        load_arena(path)
    path.write_text("x = 1\n")
    with pytest.raises(InputError, match="defines no function build"):
        load_arena(path)


def test_load_arena_of_two_sources_keeps_them_apart(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    first, second = arena(tmp_path, DEPTH=1), arena(tmp_path / "other", DEPTH=2)
    assert (first.DEPTH, second.DEPTH) == (1, 2)
    assert first.__name__ != second.__name__


def test_examples_of_the_arena_page_run(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ARENA.parents[1] / "docs/arena.md").read_text(encoding="utf-8")
    examples = [part.partition("```")[0] for part in page.split("```python\n")[1:]]
    runnable = [example for example in examples if example.startswith("from ")]
    assert len(runnable) == 2
    monkeypatch.chdir(ARENA.parents[1])
    for example in runnable:
        exec(compile(example, "docs/arena.md", "exec"), {})
