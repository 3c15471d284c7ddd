"""What the optimizer's replies must hold, and how they are read: one JSON object, checked to the last field.

Nothing is guessed: an edit with a wrong operation, a ranking with a place that does not exist or a reply in prose is
refused as a whole. Refuses to know who replied.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from ratchet.loops.skill.readable import Reader, UnreadableError
from ratchet.loops.skill.records import Edit, Op

_FENCE = re.compile(r"```(?:json)?\s*\n(.*?)\n\s*```", re.DOTALL)


def json_object(text: str) -> dict[str, Any]:
    """The one JSON object that `text` is, or holds in a fenced block. Raises UnreadableError."""
    fenced = _FENCE.findall(text)
    if len(fenced) > 1:
        raise UnreadableError(f"{len(fenced)} fenced blocks instead of one")
    try:
        value: Any = json.loads(fenced[0] if fenced else text)
    except ValueError as error:
        raise UnreadableError(f"no JSON ({error})") from None
    if not isinstance(value, dict):
        raise UnreadableError(f"a JSON {type(value).__name__} instead of an object")
    return cast("dict[str, Any]", value)


def edits_in(text: str) -> tuple[Edit, ...]:
    """The edits of `{"edits": [{"op", "target", "content", "reason", "support"}]}`; there may be none."""
    found = _field(json_object(text), "edits", list)
    return tuple(_edit(each) for each in found)


def _edit(value: Any) -> Edit:
    if not isinstance(value, Mapping):
        raise UnreadableError(f"an edit is {value!r}, not an object")
    known = {"op", "target", "content", "reason", "support"}
    if strange := set(value) - known:
        raise UnreadableError(f"an edit has the field {min(map(str, strange))!r}")
    operations = [str(op) for op in Op]
    if value.get("op") not in operations:
        raise UnreadableError(f"an edit's op is {value.get('op')!r}, not one of {', '.join(operations)}")
    texts = {name: value.get(name) or "" for name in ("target", "content", "reason")}
    if wrong := next((name for name, each in texts.items() if not isinstance(each, str)), None):
        raise UnreadableError(f"an edit's {wrong} is no text")
    support = value.get("support", 1)
    if not isinstance(support, int) or isinstance(support, bool) or support < 1:
        raise UnreadableError(f"an edit's support is {support!r}")
    return Edit(Op(value["op"]), texts["content"], texts["target"], texts["reason"], support)


def ranking_of(count: int, wanted: int) -> Reader[list[int]]:
    """A reader of `{"ranking": [places]}`: `wanted` or more different places in 0 … count − 1."""

    def read(text: str) -> list[int]:
        places = _field(json_object(text), "ranking", list)
        if not all(isinstance(place, int) and not isinstance(place, bool) and 0 <= place < count for place in places):
            raise UnreadableError(f"the ranking {places} names places outside 0 to {count - 1}")
        if len(set(places)) < len(places) or len(places) < wanted:
            raise UnreadableError(f"the ranking {places} has not {wanted} different places")
        return places

    return read


def text_under(name: str) -> Reader[str]:
    """A reader of `{name: text}`, where the text is not empty."""

    def read(text: str) -> str:
        found = _field(json_object(text), name, str)
        if not found.strip():
            raise UnreadableError(f"{name} is empty")
        return found.strip("\n")

    return read


def _field(value: Mapping[str, Any], name: str, kind: type) -> Any:
    if not isinstance(value.get(name), kind):
        raise UnreadableError(f"no {kind.__name__} under {name!r}")
    return value[name]
