"""Untrained models by name: the shipped small one, a random tiny one, a folder or a hub's name, one of our own arena.

Refuses to know how they are trained.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ratchet.core.errors import InputError
from ratchet.llm import smollm2
from ratchet.loops.team import tiny
from ratchet.loops.team.team import Source
from ratchet.settings import Settings

INSTALL = "pip install -c constraints.txt -e '.[skill]'"
SHIPPED = "smollm2"
TINY = "tiny"
"""A random toy (tiny.py): for a smoke test."""
ARENA = "arena:"


def load_sources(names: list[str], agents: int, dtype: str, device: str, settings: Settings) -> list[Source]:
    """One source per agent; agents of one name share it. Raises InputError for a name that leads nowhere."""
    if len(names) != agents:
        raise InputError("team.model", f"{len(names)} models for {agents} agents", "name one, or one per agent")
    loaded: dict[str, Source] = {}
    for name in names:
        if name not in loaded:
            loaded[name] = _load(name, dtype, device, settings)
    return [loaded[name] for name in names]


def _load(name: str, dtype: str, device: str, settings: Settings) -> Source:
    if name.startswith(ARENA):
        from ratchet.loops.team.arena_model import load_arena_model

        return load_arena_model(Path(name.removeprefix(ARENA)), device)
    torch, transformers = smollm2.libraries("team", INSTALL)
    if name == TINY:
        return Source(tiny.model().to(getattr(torch, dtype)).to(device), tiny.tokenizer())
    place: Any = name
    if name == SHIPPED:
        place = smollm2.converted(settings.downloads)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(place)
        model = transformers.AutoModelForCausalLM.from_pretrained(place, dtype=getattr(torch, dtype))
    except (OSError, ValueError) as error:
        what = f"{name!r} is no causal LM: {(str(error).splitlines() or [type(error).__name__])[0]}"
        raise InputError("team.model", what, "name a folder with config.json, weights and tokenizer") from None
    return Source(model.to(device), tokenizer)
