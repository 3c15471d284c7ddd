"""What each stage would do, in a sentence from its parameters alone: for `ratchet run --dry-run`.

Asks nobody and trains nothing. Refuses to know whether a stage has to run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ratchet.commands import params_of
from ratchet.core.errors import InputError

ARENA = Path("arena/train.py")
INCHES = (8, 4.5)


def plan(stage: str, document: Mapping[str, Any]) -> str | None:
    """The sentence of `stage`; None for a stage that is none of Ratchet's. Raises InputError for a wrong section."""
    make = PLANS.get(stage)
    return make(params_of.section(stage, document), document) if make else None


def _prepare(p: Any, _document: Mapping[str, Any]) -> str:
    sources = {
        "package": lambda: f"the corpus {p.package.corpus}, from an installed package",
        "huggingface": lambda: (
            f"{p.huggingface.shards} shards of {p.huggingface.repo} at {p.huggingface.revision}, "
            f"shard {p.huggingface.held_out_shard} held out"
        ),
        "parquet": lambda: f"column {p.parquet.column} of {p.parquet.glob} below {p.parquet.folder}",
        "text": lambda: f"{p.text.glob} below {p.text.folder}",
    }
    shares = (
        "the held-out shard makes validation and test"
        if p.source == "huggingface"
        else (
            f"{100 * p.val_share:g} % of the documents for validation, {100 * p.test_share:g} % for test, "
            f"split seed {p.split_seed}"
        )
    )
    return f"source {p.source}: {sources[p.source]()}; {shares}"


def _tokenizer(p: Any, _document: Mapping[str, Any]) -> str:
    return (
        f"a vocabulary of {p.vocab_size:,} ids from at most {p.max_characters:,} characters, "
        f"{p.max_document_characters:,} of one document"
    )


def _pack(p: Any, _document: Mapping[str, Any]) -> str:
    return f"rows of {p.sequence_len:,} targets: train filled up, validation and test padded"


def _train(p: Any, document: Mapping[str, Any]) -> str:
    pause = f", paused at step {p.stop_at:,}" if p.stop_at else ""
    return (
        f"{_length(p, document)}{pause}; seed {p.seed}, dtype {p.dtype}, "
        f"{'compiled' if p.compile else 'not compiled'}{_knobs(p)}"
    )


def _length(train: Any, document: Mapping[str, Any]) -> str:
    """The horizon of a section `train`, with the tokens of a step where the arena says them as text."""
    value, unit = train.horizon.value, train.horizon.unit
    said = f"horizon of {value:,g} {unit}"
    tokens = tokens_per_step(train, document)
    if tokens is None:
        return f"{said}; the arena says how many tokens a step has"
    total = f", {int(value) * tokens:,} in all" if unit == "steps" else ""
    return f"{said}; {tokens:,} tokens a step{total}"


def tokens_per_step(train: Any, document: Mapping[str, Any]) -> int | None:
    """Rows x accumulation x context, from the arena's text under the knobs of `train`; None where it does not say.

    Raises InputError for a knob that the arena has not, or a value that it does not allow.
    """
    from ratchet.train.arena import knobs, with_knobs

    if not ARENA.is_file():
        raise InputError(ARENA, "no such arena", "`git checkout arena/train.py`")
    known = knobs(with_knobs(ARENA.read_text(encoding="utf-8"), train.knobs, ARENA), ARENA)
    rows = [known[name].value if name in known else None for name in ("BATCH_ROWS", "ACCUMULATION")]
    sizes = [*rows, (document.get("pack") or {}).get("sequence_len")]
    return sizes[0] * sizes[1] * sizes[2] if all(isinstance(size, int) for size in sizes) else None  # pyright: ignore[reportOptionalOperand]


def _knobs(train: Any) -> str:
    told = ", ".join(f"{name} {value}" for name, value in train.knobs.items())
    return f"; {told}" if told else ""


def _evaluate(p: Any, _document: Mapping[str, Any]) -> str:
    return (
        f"the validation split, {p.batch_rows} rows at once, within {p.limit_s:,g} s; beside it a byte model of "
        f"{p.ngram.context_bytes} bytes of context"
    )


def _iterate(p: Any, document: Mapping[str, Any]) -> str:
    caps = [f"{p.hours:g} hours" if p.hours else "", f"{p.money:g} money" if p.money else ""]
    until = "".join(f", or {cap}" for cap in caps if cap)
    model = f" {p.llm.model}" if p.proposer == "llm" else ""
    rows = "all rows" if p.judged_rows is None else f"{p.judged_rows} rows"
    return (
        f"{p.experiments} experiments{until}, proposed by {p.proposer}{model}, {p.parallel} at once; the baseline on "
        f"{p.noise_seeds} noise seeds; each with a {_length(p.train, document)}; judged on {rows}"
    )


def _skill(p: Any, _document: Mapping[str, Any]) -> str:
    from ratchet.loops.skill import forecast, session

    told = forecast.forecast(session.read_request(p))
    who = [f"{name} {'embedded' if role.embedded else role.model}"
           for name, role in (("agent", p.target), ("optimizer", p.optimizer))]  # fmt: skip
    return f"{'; '.join(told.lines)}; {', '.join(who)}"


def _team(p: Any, _document: Mapping[str, Any]) -> str:
    from ratchet.loops.team import tasks

    if p.task is None:
        return f"my own task of {p.data.train}: {p.num_train_epochs} epochs, {_players(p)}"
    task = tasks.load_task(p.task, p.seed, tasks.Sizes(p.train_items, p.eval_items))
    items = len(task.train)
    steps = p.num_train_epochs * items * joint_actions(p)
    most = "at most " if p.num_turns > 1 else ""
    return (
        f"task {p.task}: {p.num_train_epochs} epochs of {items:,} items, {most}{steps:,} env steps; {_players(p)}; "
        f"{len(task.evaluation)} held-out items before and after"
    )


def _players(p: Any) -> str:
    return f"{p.num_agents} agents of {', '.join(sorted(set(p.models)))}, {p.num_generations} answers to a prompt"


def joint_actions(p: Any) -> int:
    """Joint actions of one item, all turns together: each of one turn begins a branch of the next."""
    group = p.num_generations ** (p.num_agents if p.joint_mode == "cross" else 1)
    return sum(group**turn for turn in range(1, p.num_turns + 1))


def _plot(p: Any, _document: Mapping[str, Any]) -> str:
    width, height = (round(p.dpi * inches) for inches in INCHES)
    shown = f"the {p.documents:,} hardest documents" if p.documents else "every document"
    return f"PNGs of {width} x {height} and report.html with {shown}; curves averaged over {100 * p.smoothing:g} %"


PLANS: dict[str, Callable[[Any, Mapping[str, Any]], str]] = {
    "prepare": _prepare,
    "tokenizer": _tokenizer,
    "pack": _pack,
    "train": _train,
    "evaluate": _evaluate,
    "iterate": _iterate,
    "skill": _skill,
    "team": _team,
    "plot": _plot,
}
