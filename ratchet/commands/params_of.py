"""A stage's section of params.yaml, validated: for commands that speak of stages without running one.

Knows which model reads which section; refuses to know what a stage does with it.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import yaml

from ratchet.core.errors import InputError
from ratchet.params import PARAMS_FILE, Params, lines, merge, parse_override, parse_yaml, read_document, validate

MODELS = {
    "prepare": "steps.prepare:PrepareParams",
    "tokenizer": "steps.tokenizer:TokenizerParams",
    "pack": "steps.pack:PackParams",
    "train": "ratchet.train.parameters:TrainParams",
    "evaluate": "ratchet.train.evaluate_parameters:EvaluateParams",
    "iterate": "ratchet.loops.research.parameters:IterateParams",
    "skill": "ratchet.loops.skill.parameters:SkillParams",
    "team": "ratchet.loops.team.parameters:TeamParams",
    "plot": "steps.plot:PlotParams",
}
"""Imported when asked for: those of train and iterate bring torch with them, a second."""


def read(overrides: Sequence[str] = ()) -> dict[str, Any]:
    """params.yaml with `-S` overrides laid over it. Raises InputError."""
    document = read_document(PARAMS_FILE)
    for text in overrides:
        document = merge(document, parse_override(text))
    return document


def of_revision(text: str, revision: str) -> dict[str, Any]:
    """The params.yaml that `revision` has, as it stands there: its keys may be of another time. Raises InputError."""
    where, do = f"{PARAMS_FILE} of {revision}", "name a revision whose parameters can be read"
    try:
        document = parse_yaml(text)
    except yaml.YAMLError as error:
        raise InputError(where, f"not YAML: {error}", do) from None
    if document is not None and not isinstance(document, dict):
        raise InputError(where, f"holds a {type(document).__name__}, not a mapping", do)
    return document or {}


def section(stage: str, document: Mapping[str, Any]) -> Params:
    """The validated section of `stage`. Raises InputError naming the key, the section or the package it lacks."""
    values = document.get(stage)
    if stage not in document:
        raise InputError(PARAMS_FILE, f"has no section {stage!r}", f"add `{stage}: {{}}`")
    if values is not None and not isinstance(values, Mapping):
        raise InputError(PARAMS_FILE, f"{stage} = {values!r} is not a mapping", "write `key: value` lines below it")
    return validate(cast("Mapping[str, Any]", values or {}), stage, _model(stage))


def _model(stage: str) -> type[Params]:
    module, _, name = MODELS[stage].partition(":")
    try:
        return cast("type[Params]", getattr(importlib.import_module(module), name))
    except (ImportError, ValueError) as error:  # ValueError: what matplotlib makes of a wrong MPLBACKEND
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(module, f"cannot be imported: {first}", "see `ratchet doctor`, or `make setup`") from None


def filled_in(params: Params, prefix: str, unread: Collection[str] = ()) -> list[str]:
    """The knobs that params.yaml does not name, each as `section.key = value`. `unread`: subsections that this choice
    of a source or a proposer does not read."""
    return [text for text, filled in lines(params, prefix, unread) if filled]
