"""history.json of the team loop: one record a row of training, with the columns of each agent.

Also reads the published trainer's logs, as far as they go. Knows the fields; refuses to know how a row was made.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import pandas as pd
from pandera.pandas import Column, DataFrameSchema

from ratchet.core.errors import InputError
from ratchet.settings import settings
from ratchet.tables.conform import TableError, conform
from ratchet.tables.history import newest_log
from ratchet.tables.rules import count, number

AGENT = re.compile(r"agent(\d+)_(\w+)")
UNLEARNT = ("loss", "grad_norm", "entropy", "kl", "advantage_std")
"""Empty in a row whose update had nothing to learn from."""


def agent_columns(agent: int) -> dict[str, Column]:
    """The columns of one agent, counted from 0."""
    return {
        f"agent{agent}_{name}": number(what, low=low, nullable=name in UNLEARNT)
        for name, what, low in (
            ("reward", "mean reward of the joint actions this agent learnt from", None),
            ("loss", "mean of −advantage · log-probability over its completions", None),
            ("grad_norm", "norm of its gradient before the update", 0),
            ("entropy", "mean entropy of its next-token distribution, nats", 0),
            ("kl", "its divergence from the untrained agent, nats a completion; empty when not asked for", None),
            ("completion_length", "mean tokens of its completions", 0),
        )
    }


def schema(agents: int) -> DataFrameSchema:
    """The schema of a history with so many agents."""
    return DataFrameSchema(
        {
            "seq": count("row, counted from the first without a gap", order="rising"),
            "epoch": number("passes over the training items, with the fraction of the present one", low=0,
                            order="never falling"),
            "env_step": count("joint actions rewarded up to and with this row: the x axis", low=1, order="rising"),
            "reward_mean": number("mean reward of the joint actions of the row"),
            "return_mean": number("mean return: reward and the discounted returns of later turns"),
            "advantage_std": number("standard deviation of a group's returns, mean of all", low=0, nullable=True),
            "loss": number("mean of the agents' losses; empty when nothing was learnt", nullable=True),
            "grad_norm": number("mean of the agents' gradient norms", low=0, nullable=True),
            "kl": number("mean of the agents' divergences", nullable=True),
            "entropy": number("mean of the agents' entropies, nats", low=0, nullable=True),
            "skipped_updates": count("optimizer steps left out in this row, because there was nothing to learn"),
            "eval_reward": number("mean reward on held-out items; empty in rows without an evaluation", nullable=True),
            "eval_reward_low": number("lower end of its 95 % interval over items", nullable=True),
            "eval_reward_high": number("upper end", nullable=True),
            "tokens": count("tokens generated up to and with this row", order="never falling"),
            **{name: column for agent in range(agents) for name, column in agent_columns(agent).items()},
        },
        name="data/team/history.json",
        description=(
            "One record per row of the team loop's training; here with the columns of the first agent, the others have "
            "the same."
        ),
    )  # fmt: skip


SCHEMA = schema(1)
DO = "run `dvc repro --force team` to write it anew"


def agents_of(names: Sequence[str]) -> int:
    """How many agents the columns `names` tell of."""
    found = (AGENT.fullmatch(str(name)) for name in names)
    return max((int(each.group(1)) + 1 for each in found if each), default=1)


def read(path: Path, *, runs: Path | None = None) -> pd.DataFrame:
    """The history in `path`. Raises InputError naming the run's log when it is missing, torn or empty, TableError when
    a record is unfit, a row stands twice, or one is missing."""
    log = newest_log(runs or settings().runs, "team")
    return check(_records(path, log), path, log=log)


def check(records: Sequence[Mapping[str, Any]], where: Path | str, *, log: str = DO) -> pd.DataFrame:
    """`records` as a table. Raises InputError for none, TableError naming record, field, value and rule."""
    if not records:
        raise InputError(where, "holds no row: the run died before its first update", log)
    if faults := list(_not_finite(records)):
        raise TableError(where, faults, DO)
    frame = pd.DataFrame([dict(record) for record in records], dtype=object)
    table = conform(frame, schema(agents_of(list(frame.columns))), where, rows=_named, do=DO, noun="key")
    if gaps := [
        place for place in range(1, len(table)) if table["seq"].iloc[place] != table["seq"].iloc[place - 1] + 1
    ]:
        at = gaps[0]
        missing = f"{table['seq'].iloc[at - 1] + 1} to {table['seq'].iloc[at] - 1}"
        raise TableError(where, [f"key seq, record {at + 1}: rows {missing} are missing"], DO)
    return table


def _records(path: Path, log: str) -> list[dict[str, Any]]:
    try:
        value: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(path, "no such file", log) from None
    except UnicodeDecodeError as error:
        raise InputError(path, f"not UTF-8 at byte {error.start}", DO) from None
    except ValueError as error:
        raise InputError(path, f"not JSON ({error}): it may be cut off", f"{DO}; {log}") from None
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in cast("list[Any]", value)):
        raise InputError(path, f"holds a {type(value).__name__}, not a list of records", DO)
    return cast("list[dict[str, Any]]", value)


def _not_finite(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A sentence for each NaN, which pandas would take for an empty value."""
    for place, record in enumerate(records, 1):
        for name, value in record.items():
            if isinstance(value, float) and math.isnan(value):
                yield f"key {name}, record {place}: nan (must be a finite number, or null)"


def _named(rows: list[int]) -> str:
    return ("record " if len(rows) == 1 else "records ") + ", ".join(str(row + 1) for row in rows)


class Foreign(NamedTuple):
    """A published trainer's log as a table of `env_step`, `reward_mean`, `return_mean`, `eval_reward`, and what had to
    be assumed to read it, one sentence each."""

    table: pd.DataFrame
    assumed: list[str]


STEPS = ("env_step", "_step", "step")
PUBLISHED = {
    "reward_mean": "turn_1/reward_mean",
    "return_mean": "turn_1/expected_return",
    "eval_reward": "eval/turn_1/reward_mean",
}
"""Our names → the published ones. Later turns are logged at steps of their own, so no sum over turns can be had."""


def read_published(path: Path) -> Foreign:
    """The curves in the published trainer's log: JSON lines, or a JSON list, of what it sends to W&B
    (`turn_1/reward_mean`, `turn_1/expected_return`, `eval/turn_1/reward_mean`, and the step).

    Of a value that stands twice the later one counts; a torn last line and the turns after the first are left out.
    Raises InputError when no step or no reward can be found.
    """
    rows, assumed = _foreign_rows(path)
    step = next((name for name in STEPS if any(name in row for row in rows)), None)
    if step is None:
        raise InputError(path, f"no row has {', '.join(STEPS)}", "export the run's history with its step")
    if step != "env_step":
        assumed.append(f"`{step}` was taken as env_step")
    if any("turn_2/reward_mean" in row for row in rows):
        assumed.append("turns after the first were left out")
    merged: dict[int, dict[str, float]] = {}
    twice = 0
    for row in (row for row in rows if step in row):
        found = {ours: float(row[theirs]) for ours, theirs in PUBLISHED.items() if row.get(theirs) is not None}
        held = merged.setdefault(int(row[step]), {})
        twice += bool(held.keys() & found.keys())
        held |= found
    table = pd.DataFrame([{"env_step": at, **values} for at, values in sorted(merged.items()) if values])
    if table.empty:
        keys = ", ".join(sorted({key for row in rows for key in row})[:12])
        raise InputError(path, f"no row has turn_1/reward_mean (the keys: {keys})", "export the whole history")
    if twice:
        assumed.append(f"{twice} of its rows stood twice: the later one counts")
    return Foreign(table.reindex(columns=["env_step", *PUBLISHED]), assumed)


def _foreign_rows(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(path, "no such file", "give the exported history of a run") from None
    if text.lstrip().startswith("["):
        value: Any = json.loads(text)
        return [row for row in value if isinstance(row, dict)], []
    lines = [line for line in text.split("\n") if line.strip()]
    rows: list[dict[str, Any]] = []
    for number_, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            if number_ < len(lines):
                raise InputError(f"{path}:{number_}", f"is no JSON ({error})", "export the history anew") from None
            return rows, ["the last line was torn and is left out"]
    return rows, []
