"""The arena seen from outside: its knobs as text, its module loaded, its protocol checked.

Knows the format of a knob and the protocol between arena and trainer; refuses to know what a model or an optimizer is.
`knobs` and `with_knobs` work on the source alone and never run it.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib.util
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Protocol, TypeAlias, cast

import torch
from torch import Tensor

from ratchet.core.errors import InputError

Value: TypeAlias = int | float | str
Kind: TypeAlias = Literal["int", "float", "str"]
KINDS: dict[str, type] = {"int": int, "float": float, "str": str}


def keep(_gradients: Sequence[Tensor]) -> None:
    """`spec.reduce` of a training in one process: the gradients stay as they are."""


@dataclass(frozen=True)
class Spec:
    """What an arena is told: ids in the vocabulary, positions in the context, and how to compute.

    `reduce` is called on the list of all gradients, before the optimizer: it makes them those of the whole batch, in
    place, where several processes share it.
    """

    vocab_size: int
    sequence_len: int
    device: str
    dtype: Literal["float32", "bfloat16"]
    compile: bool
    seed: int
    reduce: Callable[[Sequence[Tensor]], None] = keep


class Experiment(Protocol):
    """What `build(spec)` of an arena returns. docs/arena.md says what each member promises."""

    batch_rows: int
    accumulation: int

    def step(self, batches: Sequence[Tensor], progress: float) -> Tensor: ...
    def logits(self, tokens: Tensor) -> Tensor: ...
    def state_dict(self) -> dict[str, Tensor]: ...
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None: ...
    def metrics(self) -> dict[str, float]: ...
    def num_params(self) -> int: ...
    def flops_per_token(self) -> float: ...


@dataclass(frozen=True)
class Knob:
    """A constant that a search may set: a range `low`..`high` (on a log scale if `log`), or `choices`."""

    name: str
    kind: Kind
    low: float | None
    high: float | None
    log: bool
    choices: tuple[Value, ...]
    value: Value

    def refusal(self, value: object) -> str | None:
        """Why `value` may not be this knob's, or None when it may."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        fits = isinstance(value, KINDS[self.kind]) and not isinstance(value, bool)
        if not (fits or (self.kind == "float" and is_number)):
            return f"is no {self.kind}"
        if self.choices:
            return None if value in self.choices else f"is none of {', '.join(map(repr, self.choices))}"
        low, high = cast(float, self.low), cast(float, self.high)
        return None if low <= cast(float, value) <= high else f"is outside {low} to {high}"


def knobs(source: str, where: object = "arena") -> dict[str, Knob]:
    """The knobs of an arena's source by name, in its order; `where` names the source in an error.

    A knob is a top-level line `NAME: Annotated[kind, low, high] = value`, or with `, "log"` behind the range, or
    `NAME: Annotated[kind, (choice, ...)] = value`, or for text `Annotated[str, choice, ...]`;
    kind is int, float or str.
    Raises InputError with the line when the source does not parse or a knob is not of that form.
    """
    return {node.target.id: _knob(node, where) for node in _knob_nodes(source, where)}


def read_source(path: Path, values: Mapping[str, Value]) -> str:
    """The text of the arena in the file `path` with the values of some knobs replaced. Raises InputError."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(path, f"not UTF-8 at byte {error.start}", "save the file as UTF-8") from None
    return with_knobs(text, values, path)


def with_knobs(source: str, values: Mapping[str, Value], where: object = "arena") -> str:
    """`source` with the values of some knobs replaced; every other character stays as it is.

    Raises InputError for a name that is no knob (with the nearest one) and for a value that the knob does not allow.
    """
    known = knobs(source, where)
    for name, value in values.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"the knobs are {', '.join(known) or 'none at all'}"
            raise InputError(where, f"no knob {name!r}", hint)
        if why := known[name].refusal(value):
            raise InputError(where, f"{name} = {value!r} {why}", "choose a value that the knob's line allows")
    lines = source.encode().splitlines(keepends=True)  # ast counts columns in bytes of UTF-8
    for node in reversed(_knob_nodes(source, where)):
        if node.target.id in values:
            value = values[node.target.id]
            text = json.dumps(float(value) if known[node.target.id].kind == "float" else value, ensure_ascii=False)
            _replace(lines, node.value, text.encode())
    return b"".join(lines).decode()


class _KnobNode(ast.AnnAssign):
    """A top-level annotated assignment to a plain name whose annotation is `Annotated[...]`."""

    target: ast.Name  # pyright: ignore[reportIncompatibleVariableOverride]
    annotation: ast.Subscript  # pyright: ignore[reportIncompatibleVariableOverride]
    value: ast.expr  # pyright: ignore[reportIncompatibleVariableOverride]


def _knob_nodes(source: str, where: object) -> list[_KnobNode]:
    try:
        body = ast.parse(source).body
    except SyntaxError as error:
        raise InputError(f"{where}:{error.lineno}", f"no Python: {error.msg}", "mend that line") from None
    return [cast(_KnobNode, node) for node in body if isinstance(node, ast.AnnAssign) and _is_knob(node)]


def _is_knob(node: ast.AnnAssign) -> bool:
    annotated = isinstance(node.annotation, ast.Subscript) and ast.unparse(node.annotation.value).endswith("Annotated")
    return annotated and isinstance(node.target, ast.Name) and node.value is not None


def _replace(lines: list[bytes], node: ast.expr, text: bytes) -> None:
    first, last = node.lineno - 1, cast(int, node.end_lineno) - 1
    lines[first : last + 1] = [lines[first][: node.col_offset] + text + lines[last][node.end_col_offset :]]


def _knob(node: _KnobNode, where: object) -> Knob:
    line, name = f"{where}:{node.lineno}", node.target.id
    form = 'write `NAME: Annotated[int, low, high] = value`, `[float, low, high, "log"]` or `[str, (choice, ...)]`'
    elements = node.annotation.slice.elts if isinstance(node.annotation.slice, ast.Tuple) else []
    try:
        kind = ast.unparse(elements[0]) if elements else ""
        rest: list[Any] = [ast.literal_eval(element) for element in elements[1:]]
        value: Value = ast.literal_eval(node.value)
    except ValueError:
        raise InputError(line, f"knob {name} is not made of literals", form) from None
    knob = _parse(name, kind, rest, value)
    if knob is None:
        raise InputError(line, f"knob {name} has the annotation {ast.unparse(node.annotation)}", form)
    if why := knob.refusal(value):
        raise InputError(line, f"{name} = {value!r} {why}", "mend the value or the range")
    return knob


def _parse(name: str, kind: str, rest: list[Any], value: Value) -> Knob | None:
    match kind, rest:
        case "int" | "float" | "str", [tuple() as choices] if choices:
            return Knob(name, kind, None, None, False, choices, value)
        case "str", [str(), *_] if all(isinstance(choice, str) for choice in rest):
            return Knob(name, kind, None, None, False, tuple(rest), value)
        case "int" | "float", [int() | float() as low, int() | float() as high] if low < high:
            return Knob(name, kind, low, high, False, (), value)
        case "int" | "float", [int() | float() as low, int() | float() as high, "log"] if 0 < low < high:
            return Knob(name, kind, low, high, True, (), value)
        case _:
            return None


def load_arena(source_path: Path) -> ModuleType:
    """The arena's module, run afresh from `source_path` (any name, any folder) and found in sys.modules afterwards.

    The module's name carries the hash of the source, so two arenas never meet. Raises InputError when the file is
    missing, is no Python, or defines no `build`; what the source itself raises passes through.
    """
    try:
        source = source_path.read_bytes()
    except FileNotFoundError:
        raise InputError(source_path, "no such arena", "give the path of an arena's train.py") from None
    name = f"ratchet_arena_{hashlib.sha256(source).hexdigest()[:16]}"
    spec = importlib.util.spec_from_loader(name, loader=None, origin=str(source_path))
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__ = str(source_path)
    try:
        code = compile(source, str(source_path), "exec")
    except (SyntaxError, ValueError) as error:  # ValueError: a null byte
        line = getattr(error, "lineno", None)
        where = f"{source_path}:{line}" if line else source_path
        raise InputError(where, f"no Python: {error}", "mend that line") from None
    sys.modules[name] = module
    exec(code, module.__dict__)
    if not callable(getattr(module, "build", None)):
        raise InputError(source_path, "defines no function build(spec)", "see docs/arena.md for the protocol")
    return module


def build_experiment(module: ModuleType, spec: Spec) -> Experiment:
    """`build(spec)` of a loaded arena, its protocol checked. Raises InputError where the knobs or the protocol fail."""
    where = module.__file__ or module.__name__
    try:
        experiment = module.build(spec)
    except ValueError as error:
        raise InputError(where, str(error), "choose knobs that fit together") from error
    check_experiment(experiment, spec, where)
    return experiment


def check_experiment(experiment: Any, spec: Spec, where: object = "arena") -> None:
    """Check what can be checked without a step: members, counts, names of the state, and logits of one row.

    Raises InputError saying which promise of docs/arena.md is broken and with what. Costs one forward pass of one row.
    """

    def refuse(what: str) -> InputError:
        return InputError(where, what, "see docs/arena.md for the protocol")

    methods = ("step", "logits", "state_dict", "load_state_dict", "metrics", "num_params", "flops_per_token")
    for name in methods:
        if not callable(getattr(experiment, name, None)):
            raise refuse(f"the experiment has no method {name}()")
    for name in ("batch_rows", "accumulation"):
        count = getattr(experiment, name, None)
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise refuse(f"{name} is {count!r}, not a whole number of at least 1")
    if not isinstance(experiment.num_params(), int) or experiment.num_params() < 1:
        raise refuse(f"num_params() is {experiment.num_params()!r}, not a positive int")
    if not math.isfinite(experiment.flops_per_token()) or experiment.flops_per_token() <= 0:
        raise refuse(f"flops_per_token() is {experiment.flops_per_token()!r}, not a positive number")
    for name, value in experiment.state_dict().items():
        if not name.startswith(("model.", "optimizer.")) or not isinstance(value, Tensor):
            raise refuse(
                f"state_dict() holds {name!r}: {type(value).__name__}, not a tensor under model. or optimizer."
            )
    tokens = torch.zeros((1, spec.sequence_len), dtype=torch.int64, device=spec.device)
    shape, wanted = tuple(experiment.logits(tokens).shape), (1, spec.sequence_len, spec.vocab_size)
    if shape != wanted:
        raise refuse(f"logits() of tokens [1, {spec.sequence_len}] has the shape {list(shape)}, not {list(wanted)}")


def check_loss(loss: Any, where: object = "arena") -> Tensor:
    """`loss` as `step` must return it: a detached 0-d tensor (its value may be anything). Raises InputError if not."""
    if not isinstance(loss, Tensor) or loss.ndim != 0 or loss.requires_grad:
        what = f"a {type(loss).__name__}" if not isinstance(loss, Tensor) else f"shape {list(loss.shape)}"
        attached = isinstance(loss, Tensor) and loss.requires_grad
        raise InputError(
            where,
            f"step() returned {what}{' that is attached to the graph' if attached else ''}",
            "return the detached 0-d mean loss in nats",
        )
    return loss


def check_exact_resume(module: ModuleType, spec: Spec, batches: Sequence[Tensor]) -> None:
    """Check that `state_dict` covers everything: step, save, load into a fresh build, step both, compare.

    Raises InputError naming the first tensor that differs.
    """
    where = module.__file__ or module.__name__
    first = build_experiment(module, spec)
    first.step(batches, 0.0)
    saved = {name: value.clone() for name, value in first.state_dict().items()}
    second = build_experiment(module, spec)
    second.load_state_dict(saved)
    losses = [float(experiment.step(batches, 0.5)) for experiment in (first, second)]
    mine, other = first.state_dict(), second.state_dict()
    different = [name for name, value in mine.items() if name not in other or not torch.equal(value, other[name])]
    if different or set(mine) != set(other) or losses[0] != losses[1]:
        name = different[0] if different else "the loss"
        raise InputError(
            where,
            f"after save, load and one step {name} differs from the run that was never saved",
            "keep every number that a step depends on in state_dict()",
        )
