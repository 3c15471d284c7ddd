"""history.json of the team loop: one record a row of training, with the columns of each agent.

Beside it lies the time of each row. Knows the fields; refuses to know how a row was made.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from pandera.pandas import Column, DataFrameSchema

from ratchet.core.errors import InputError
from ratchet.settings import settings
from ratchet.tables import records
from ratchet.tables.conform import TableError, conform, record_numbers
from ratchet.tables.history import newest_log
from ratchet.tables.rules import count, flag, number

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
TIMING = DataFrameSchema(
    {
        "seq": count("row of data/team/history.json", order="rising"),
        "env_step": count("joint actions rewarded up to and with this row", low=1, order="rising"),
        "seconds": number("seconds that the row took", low=0),
        "tokens_per_s": number("tokens generated per second of it; empty when it took no time", low=0, nullable=True),
        "resumed": flag("whether a later process went on with this row"),
    },
    name="data/team-timing.json",
    description="One record per row of the team loop's training, with what differs between reruns.",
)
DO = "run `dvc repro --force team` to write it anew"


def agents_of(names: Sequence[str]) -> int:
    """How many agents the columns `names` tell of."""
    found = (AGENT.fullmatch(str(name)) for name in names)
    return max((int(each.group(1)) + 1 for each in found if each), default=1)


def read(path: Path, *, runs: Path | None = None) -> pd.DataFrame:
    """The history in `path`. Raises InputError naming the run's log when it is missing, torn or empty, TableError when
    a record is unfit, a row stands twice, or one is missing."""
    log = newest_log(runs or settings().runs, "team")
    return check(records.read_rows(path, do=DO, log=log), path, log=log)


def check(records: Sequence[Mapping[str, Any]], where: Path | str, *, log: str = DO) -> pd.DataFrame:
    """`records` as a table. Raises InputError for none, TableError naming record, field, value and rule."""
    if not records:
        raise InputError(where, "holds no row: the run died before its first update", log)
    if faults := list(_not_finite(records)):
        raise TableError(where, faults, DO)
    frame = pd.DataFrame([dict(record) for record in records], dtype=object)
    table = conform(frame, schema(agents_of(list(frame.columns))), where, rows=record_numbers, do=DO, noun="key")
    if gaps := [
        place for place in range(1, len(table)) if table["seq"].iloc[place] != table["seq"].iloc[place - 1] + 1
    ]:
        at = gaps[0]
        missing = f"{table['seq'].iloc[at - 1] + 1} to {table['seq'].iloc[at] - 1}"
        raise TableError(where, [f"key seq, record {at + 1}: rows {missing} are missing"], DO)
    return table


def read_timing(path: Path) -> list[dict[str, Any]]:
    """The rows of data/team-timing.json, checked. Raises InputError or TableError."""
    rows = records.read_rows(path, do=DO, log=DO)
    if not rows:
        raise InputError(path, "holds no row", DO)
    conform(pd.DataFrame(rows, dtype=object), TIMING, path, rows=record_numbers, do=DO, noun="key")
    return rows


def _not_finite(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A sentence for each NaN, which pandas would take for an empty value."""
    for place, record in enumerate(records, 1):
        for name, value in record.items():
            if isinstance(value, float) and math.isnan(value):
                yield f"key {name}, record {place}: nan (must be a finite number, or null)"
