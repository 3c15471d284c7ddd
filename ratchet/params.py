"""Parameters: what defines a result. Reads params.yaml, lays profiles and overrides over it, validates one section.

Knows YAML and pydantic; refuses to know any stage.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from ratchet.core.errors import InputError

PARAMS_FILE = Path("params.yaml")


class Params(BaseModel):
    """Base of every params section: frozen, strict, unknown keys refused. Describe each field with its unit."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


P = TypeVar("P", bound=Params)


def read_document(path: Path = PARAMS_FILE) -> dict[str, Any]:
    """The whole of a params or profile file. Raises InputError when it is missing, not YAML, or not a mapping."""
    try:
        document = parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(path, "no such file", "run in the project's folder, or `git checkout` the file") from None
    except UnicodeDecodeError as error:
        raise InputError(path, f"not UTF-8 at byte {error.start}", "save the file as UTF-8") from None
    except yaml.YAMLError as error:
        raise InputError(path, f"not YAML: {error}", "mend the line named") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise InputError(path, f"holds a {type(document).__name__}, not a mapping", "write `section: {key: value}`")
    return document


class _Loader(yaml.SafeLoader):
    """YAML 1.2 numbers, as DVC reads the same file: PyYAML alone takes `1e-3` for a text."""


_Loader.add_implicit_resolver(  # pyright: ignore[reportUnknownMemberType]
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def parse_yaml(text: str) -> Any:
    """The value of one YAML document. Raises yaml.YAMLError."""
    return yaml.load(text, Loader=_Loader)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `over` laid on it: mappings merge key by key, everything else is replaced. Neither is changed."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def parse_override(text: str) -> dict[str, Any]:
    """`train.horizon.value=20` as a nested mapping; the value is YAML. Raises InputError when it is no assignment."""
    dotted, equals, value = text.partition("=")
    keys = dotted.strip().split(".")
    if not equals or not all(keys):
        raise InputError("-S", f"{text!r} is no assignment", "write `-S section.key=value`")
    try:
        nested: Any = parse_yaml(value) if value else None
    except yaml.YAMLError:
        raise InputError("-S", f"the value of {text!r} is not YAML", "quote it: -S 'key=\"value\"'") from None
    for key in reversed(keys):
        nested = {key: nested}
    return nested


def load(section: str, model: type[P], path: Path = PARAMS_FILE) -> P:
    """The validated `section` of the params file; an empty one takes every default.

    Raises InputError that names the key, the value, and the nearest valid key.
    """
    document = read_document(path)
    if section not in document:
        raise InputError(path, f"has no section {section!r}", _nearest(section, document, f"add `{section}: {{}}`"))
    values = document[section]
    if values is not None and not isinstance(values, dict):
        raise InputError(path, f"{section} = {_short(values)} is not a mapping", "write `key: value` lines below it")
    return validate(values or {}, section, model, path)


def _nearest(name: str, names: Iterable[object], otherwise: str) -> str:
    near = difflib.get_close_matches(name, [str(known) for known in names], n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else otherwise


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def validate(values: Mapping[str, Any], section: str, model: type[P], path: Path = PARAMS_FILE) -> P:
    """`values` as `model`. Raises InputError naming the first thing that is wrong and how many more there are."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        first, *others = sorted(
            error.errors(), key=lambda one: one["type"] != "extra_forbidden"
        )  # a typo, then the hole
        dotted = ".".join([section, *(str(part) for part in first["loc"])])
        more = f" (and {len(others)} more)" if others else ""
        if first["type"] == "extra_forbidden":
            names = _names_at(model, first["loc"][:-1])
            hint = _nearest(str(first["loc"][-1]), names, f"the keys here are {', '.join(sorted(names))}")
            raise InputError(path, f"unknown key {dotted!r}{more}", hint) from None
        if first["type"] == "missing":
            raise InputError(path, f"key {dotted!r} is missing{more}", "add it") from None
        message = first["msg"][0].lower() + first["msg"][1:]
        raise InputError(path, f"{dotted} = {_short(first['input'])}{more}: {message}", "change the value") from None


def _names_at(model: type[BaseModel], location: Sequence[str | int]) -> list[str]:
    """The field names of the model reached from `model` by `location`; those of `model` when it leads nowhere."""
    for part in location:
        field = model.model_fields.get(str(part))
        candidates = [field.annotation, *get_args(field.annotation)] if field else []
        inner = [c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)]
        if inner:
            model = inner[0]
    return list(model.model_fields)


def lines(params: Params, prefix: str, unread: Collection[str] = ()) -> Iterator[tuple[str, bool]]:
    """Every knob as `section.key = value`, and whether it was filled in: no file and no override names it.

    `unread`: subsections to leave out.
    """
    for name in type(params).model_fields:
        value = getattr(params, name)
        if name in unread:
            continue
        if isinstance(value, Params):
            yield from lines(value, f"{prefix}.{name}")
        else:
            shown = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
            yield f"{prefix}.{name} = {shown}", name not in params.model_fields_set


def echo(params: Params, section: str) -> list[str]:
    """Every knob on a line of its own, `(default)` behind those that were filled in."""
    return [f"{text}{'  (default)' if filled else ''}" for text, filled in lines(params, section)]
