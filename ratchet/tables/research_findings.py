"""What a person should see in the tables of a research session.

Pure functions of tables; refuses to know files, and who made them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ratchet.tables.findings import Found, Severity, thirds
from ratchet.tables.metrics import carries_over

FEW_EXPERIMENTS, MANY_EXPERIMENTS = 4, 8
"""A gate that kept all of the first, or none of the second, is told."""
ACCELERATES = 1.5
"""Cost of an experiment in the last third against the first third."""
RECENT, STALE = 5, 0.6
"""Of the last experiments, at least so many of them and half of the session, the share that brought nothing new."""


def in_research(rows: pd.DataFrame, told: Mapping[str, Any]) -> list[Found]:
    """The findings on results.tsv, as `results` reads it, and metrics/iterate.json."""
    found = [
        under_baseline(told), within_noise(rows, told), lost_on_test(told), dead_proposer(rows), one_sided_gate(rows),
        accelerating_cost(rows),
    ]  # fmt: skip
    return [each for each in found if each]


def under_baseline(told: Mapping[str, Any]) -> Found | None:
    """A best version worse than the baseline: ties kept as simpler may add up to that."""
    if told["gain"] >= 0:
        return None
    return Found(
        Severity.WARNING,
        "the best is worse than the baseline",
        f"{told['val_bpb']:.4f} bits per byte, the baseline has {told['baseline_val_bpb']:.4f}",
        "do not promote it: what was kept is simpler, not better",
    )


def accelerating_cost(rows: pd.DataFrame) -> Found | None:
    """Experiments that cost more and more: a model is told all that was tried before."""
    cost = thirds(rows["cost"].iloc[1:].dropna(), MANY_EXPERIMENTS)
    if cost is None or cost[1] <= ACCELERATES * cost[0]:
        return None
    return Found(
        Severity.NOTE,
        "the cost accelerates",
        f"from {cost[0]:.4g} to {cost[1]:.4g} an experiment, means of the first and of the last third",
        "shorten arena/program.md, end the session and begin a new one from its best, or cap iterate.money",
    )


def within_noise(rows: pd.DataFrame, told: Mapping[str, Any]) -> Found | None:
    """Kept as better, with a gain that the noise between seeds makes by itself."""
    threshold = float(told["noise"]["threshold"])
    better = rows[(rows["status"] == "keep") & rows["delta"].notna() & ~rows["reason"].str.startswith("simpler")]
    doubtful = better[better["delta"] <= threshold]
    gain = float(told["gain"])
    whole = told["progress"] > 0 and gain <= threshold
    if not len(doubtful) and not whole:
        return None
    noise = f"seeds alone move it by {threshold:.4f} (sd {told['noise']['sd']:.4f} over {told['noise']['seeds']} seeds)"
    parts = [f"a gain of {gain:.4f} in all"] if whole else []
    if len(doubtful):
        smallest = doubtful["delta"].min()
        parts.append(f"{len(doubtful)} of {len(better)} kept experiments gained no more, the least {smallest:.4f}")
    return Found(
        Severity.WARNING,
        "the noise is larger than the improvement claimed",
        f"{'; '.join(parts)}; {noise}",
        "train both versions with further seeds before you believe it; raise iterate.noise_seeds or the horizon",
    )


def lost_on_test(told: Mapping[str, Any]) -> Found | None:
    """A gain on the validation split that the test split, which no gate has seen, does not show."""
    if carries_over(told) is not False:
        return None
    test = told["test"]
    side = "is worse there" if test["upper"] < 0 else "is not told apart from none"
    return Found(
        Severity.WARNING,
        "the gain does not carry over to the test split",
        f"{told['gain']:.4f} on validation, {test['gain']:.4f} on test (95 %: {test['lower']:.4f} to "
        f"{test['upper']:.4f}): it {side}",
        "do not promote it; judge more rows (iterate.judged_rows: null), for the gate fitted the rows it saw",
    )


def dead_proposer(rows: pd.DataFrame) -> Found | None:
    """The last experiments repeat sources, propose none, or all crash."""
    tried = rows.iloc[1:]
    recent = tried.iloc[-max(RECENT, len(tried) // 2) :]
    if len(recent) < RECENT:
        return None
    sources = rows["arena_sha"]
    repeated = (sources.isna() | sources.duplicated()).loc[recent.index]
    nothing = int((recent["arena_sha"].isna()).sum())
    crashed = int((recent["status"] == "crash").sum())
    said = f"of the last {len(recent)} experiments"
    if crashed == len(recent):
        reasons: Sequence[Any] = recent["reason"].value_counts().index.tolist()
        evidence = f"all of the last {len(recent)} experiments crashed, most often with: {str(reasons[0])[:120]}"
        do = "read their logs (`ratchet logs iterate/N`) and tell the proposer in arena/program.md what to leave alone"
    elif repeated.mean() >= STALE:
        again = int(repeated.sum()) - nothing
        evidence = f"{said} {again} repeated an arena that had been tried and {nothing} proposed none"
        do = "widen iterate.search.knobs, write a new direction into arena/program.md, or change the proposer"
    else:
        return None
    return Found(Severity.WARNING, "the proposer has no new ideas", evidence, do)


def one_sided_gate(rows: pd.DataFrame) -> Found | None:
    """A gate that keeps all or nothing of what it judged."""
    judged = rows.iloc[1:]
    judged = judged[judged["status"] != "crash"]
    kept = int((judged["status"] == "keep").sum())
    if kept == len(judged) >= FEW_EXPERIMENTS:
        return Found(
            Severity.WARNING,
            "the gate keeps everything",
            f"all {kept} experiments that it judged were kept",
            "look at the noise (iterate.noise_seeds): an sd that is too small lets everything through",
        )
    if kept == 0 and len(judged) >= MANY_EXPERIMENTS:
        best = judged["delta"].max()
        return Found(
            Severity.NOTE,
            "the gate keeps nothing",
            f"none of {len(judged)} experiments that it judged was kept; the best came {best:+.4f} from the incumbent",
            "lengthen iterate.train.horizon so that differences show, or let the proposer change more at once",
        )
    return None
