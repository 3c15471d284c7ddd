"""How much memory and room on disk a stage will want: estimates from its parameters, each with how it was made.

Builds the arena's model without its weights (torch's device `meta`), so that counting costs no memory. Refuses to
measure anything, and to be exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from ratchet.commands.doctor_machine import gb
from ratchet.core.errors import InputError, RatchetError

MARGIN = 1.25
"""For what the arithmetic leaves out. The default model's step: 1.15 GB told, 1.17 GB measured (README)."""
PROCESS_BYTES = {"cpu": 0.4e9, "mps": 0.4e9, "cuda": 1.0e9}
"""Torch itself; on CUDA its context and its libraries' working space."""
SMOLLM2 = 134_515_008
SMOLLM2_CONVERSION_BYTES = 1.7e9
SMOLLM2_VOCAB = 49_152
CHECKPOINT_BYTES = 7
"""Of a weight in a checkpoint of the team loop: the weight, and moments rounded to 3 bytes (docs/team.md)."""


class Need(NamedTuple):
    """Bytes, and how they were arrived at."""

    size: float
    how: str


class Model(NamedTuple):
    """What the arena builds. `values`: numbers that one token leaves for the backward pass."""

    parameters: int
    state_bytes: int
    rows: int
    values: int


def count(arena: Path, knobs: Mapping[str, Any], vocab_size: int, sequence_len: int) -> Model:
    """The model of `arena` under `knobs`. Raises InputError when it cannot be built; runs the arena's code."""
    import tempfile

    from ratchet.train.arena import load_arena, with_knobs

    text = with_knobs(arena.read_text(encoding="utf-8"), knobs, arena)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / arena.name
        copy.write_text(text, encoding="utf-8")
        return _build(load_arena(copy), arena, vocab_size, sequence_len)


def _build(module: ModuleType, arena: Path, vocab_size: int, sequence_len: int) -> Model:
    import torch

    from ratchet.train.arena import Spec

    spec = Spec(vocab_size, sequence_len, device="meta", dtype="float32", compile=False, seed=1)
    try:
        with torch.device("meta"):
            built = module.build(spec)
        state: Mapping[str, torch.Tensor] = built.state_dict()
        weights = [tensor for name, tensor in state.items() if name.startswith("model.") and tensor.ndim == 2]
        values = sum(sum(weight.shape) for weight in weights if vocab_size not in weight.shape)
        size = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
        return Model(built.num_params(), size, built.batch_rows, values)
    except RatchetError:
        raise
    except Exception as error:  # noqa: BLE001  (the boundary: whatever an arena raises that somebody has edited)
        what = f"builds no model to count: {type(error).__name__}: {error}"
        raise InputError(arena, what, "mend it, or choose knobs that fit together") from None


def training(model: Model, vocab_size: int, sequence_len: int, dtype: str, kind: str) -> Need:
    """Memory of one training step."""
    width = 2 if dtype == "bfloat16" else 4
    tokens = model.rows * sequence_len
    gradients = 4 * model.parameters
    kept = tokens * model.values * width
    logits = tokens * vocab_size * width
    size = PROCESS_BYTES[kind] + MARGIN * (model.state_bytes + gradients + kept + logits)
    how = (
        f"{model.parameters / 1e6:.1f}M parameters: {gb(model.state_bytes + gradients)} weights, moments, gradients; "
        f"{model.rows} rows x {sequence_len} tokens: {gb(kept)} activations, {gb(logits)} logits in {dtype}; "
        f"a quarter more, and {gb(PROCESS_BYTES[kind])} for torch"
    )
    return Need(size, how)


def judging(model: Model, vocab_size: int, sequence_len: int, rows: int, kind: str) -> Need:
    """Memory of the two processes that answer the judge."""
    weights, logits = 4 * model.parameters, rows * sequence_len * vocab_size * 8
    how = (
        f"two processes of {model.parameters / 1e6:.1f}M parameters: {gb(weights)} weights, {gb(logits)} for the "
        f"logits of {rows} rows, {gb(PROCESS_BYTES[kind])} for torch, each"
    )
    return Need(2 * (PROCESS_BYTES[kind] + MARGIN * (weights + logits)), how)


def team(params: Any, kind: str) -> Need | None:
    """Memory of a team training; None where the size of a model is not known before it is loaded."""
    sizes = [parameters_of(name) for name in params.models]
    if not sizes or None in sizes:
        return None
    parameters = [size for size in sizes if size is not None][: 1 if params.shared_weights else None]
    bytes_each = 4 if params.lora else 16
    batch = params.batch_nodes * params.num_generations * params.max_new_tokens
    tokens = min(params.micro_batch_tokens, batch)
    logits = tokens * SMOLLM2_VOCAB * 8
    size = PROCESS_BYTES[kind] + sum(parameters) * bytes_each + logits
    parts = "weights" if params.lora else "weights, gradients, moments"
    how = (
        f"{len(parameters)} x {parameters[0] / 1e6:.0f}M parameters x {bytes_each} bytes ({parts}), {gb(logits)} for "
        f"the logits of {tokens} tokens, {gb(PROCESS_BYTES[kind])} for torch"
    )
    return Need(size, how)


def parameters_of(name: str) -> int | None:
    """Parameters of a model that team.model may name, from what lies on disk; None when that does not tell."""
    if name == "smollm2":
        return SMOLLM2
    if name == "tiny":
        return 100_000
    folder = Path(name.removeprefix("arena:"))
    files = [*folder.glob("*.safetensors"), *folder.glob("*.bin")] if folder.is_dir() else []
    return sum(file.stat().st_size for file in files) // 4 or None


def room(stage: str, params: Any, last_bytes: int, model: Model | None) -> Need:
    """Room on disk that `stage` may take: what it wrote the last time, by dvc.lock, twice because DVC keeps it too;
    and what its run directory keeps meanwhile."""
    published = Need(2 * last_bytes, f"twice the {gb(last_bytes)} that dvc.lock says it wrote")
    if not last_bytes or stage == "prepare":
        published = max(published, _never_ran(stage, params, model))
    kept = _run_directory(stage, params, model)
    return Need(published.size + kept.size, "; ".join(how for how in (published.how, kept.how) if how))


def _never_ran(stage: str, params: Any, model: Model | None) -> Need:
    if stage == "prepare":
        return _corpus(params)
    if stage == "team" and params.publish_agents:
        weights = sum(parameters_of(name) or SMOLLM2 for name in params.models)
        return Need(2 * 4 * weights, f"twice 4 bytes of {weights / 1e6:.0f}M weights that are published")
    if stage == "train" and model is not None:
        return Need(2 * 4 * model.parameters, f"twice 4 bytes of {model.parameters / 1e6:.1f}M weights")
    return Need(0.2e9, "0.2 GB, for it never ran here")


def _corpus(params: Any) -> Need:
    """Shards are about as large as what they are made of, and DVC keeps them too."""
    if params.source == "huggingface":
        shards = params.huggingface.shards + 1
        return Need(3 * shards * 0.1e9, f"three times {shards} shards of about 0.1 GB: fetched, prepared, cached")
    if params.source in ("text", "parquet"):
        own = getattr(params, params.source)
        size = sum(file.stat().st_size for file in Path(own.folder).glob(own.glob) if file.is_file())
        return Need(2 * size, f"twice the {gb(size)} of {own.folder}")
    return Need(0.2e9, "0.2 GB, more than any corpus in a package")


def _run_directory(stage: str, params: Any, model: Model | None) -> Need:
    if stage == "train" and model is not None:
        copies = params.checkpoint.keep_last + params.checkpoint.keep_best + 1
        return Need(copies * model.state_bytes, f"{copies} checkpoints of {gb(model.state_bytes)}")
    if stage == "iterate" and model is not None:
        trainings = params.experiments + params.noise_seeds
        each = 3 * model.state_bytes
        return Need(trainings * each, f"{trainings} trainings of three states of {gb(model.state_bytes)}, at most")
    if stage == "team":
        weights = sum(parameters_of(name) or SMOLLM2 for name in params.models)
        copies = params.keep_last + 1
        size = copies * CHECKPOINT_BYTES * weights
        return Need(size, f"{copies} checkpoints of {CHECKPOINT_BYTES} bytes a weight")
    if stage == "skill" and params.target.embedded:
        return Need(0.6e9, "0.6 GB for the converted model, once")
    return Need(0, "")
