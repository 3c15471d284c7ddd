"""metrics/*.json: the results of each stage that are the same on every rerun, one object a stage.

Knows the keys readers rely on; refuses to know seconds, memory and paths. A stage may write more keys than these.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pandera.pandas import DataFrameSchema

from ratchet.core.errors import InputError
from ratchet.tables import records
from ratchet.tables.rules import count, number, text

SPLITS = ("train", "val", "test")

PREPARE = DataFrameSchema(
    {
        "corpus": text("name of the corpus"),
        "source": text("kind of source it came from"),
        "licence": text("licence of its text"),
        "sha256": text("hash of the corpus' files"),
        "documents": count("documents kept, all splits", low=1),
        "bytes": count("their UTF-8 bytes", low=1),
        **{f"splits.{s}.documents": count(f"documents of the {s} split", low=1) for s in SPLITS},
        **{f"splits.{s}.bytes": count(f"UTF-8 bytes of the {s} split", low=1) for s in SPLITS},
        "dropped.duplicates_within": count("exact duplicates left out, seen in the same split"),
        "dropped.duplicates_across": count("exact duplicates left out, seen in another split"),
        "dropped.empty": count("documents without text, left out"),
    },
    name="metrics/prepare.json",
    description="The manifest of the corpus; written by `prepare`.",
)

TOKENIZER = DataFrameSchema(
    {
        "vocab_size": count("token ids, the 4 specials among them", low=1),
        "documents": count("documents that merges were learnt from", low=1),
        "characters": count("characters of them", low=1),
        "longest_token_bytes": count("bytes of the longest token", low=1),
    },
    name="metrics/tokenizer.json",
    description="What the vocabulary was learnt from; written by `tokenizer`.",
)

PACK = DataFrameSchema(
    {
        **{f"{s}.documents": count(f"documents of the {s} split", low=1) for s in SPLITS},
        **{f"{s}.rows": count(f"rows of the {s} split", low=1) for s in SPLITS},
        **{
            f"{s}.utilisation": number(f"share of the {s} rows' places that hold tokens", low=0, high=1) for s in SPLITS
        },
    },
    name="metrics/pack.json",
    description="How well the rows are filled, per split; written by `pack`.",
)

TRAIN = DataFrameSchema(
    {
        "steps": count("optimizer steps trained", low=1),
        "tokens": count("tokens trained on", low=1),
        "epochs": number("passes over the training rows", low=0),
        "final_loss": number("mean loss of the last 10 steps, nats per token", low=0),
        "params_m": number("parameters of the model, millions", low=0),
        "horizon_steps": count("steps the schedule was laid out for", low=1),
    },
    name="metrics/train.json",
    description="What training came to; written by `train`.",
)

EVALUATE = DataFrameSchema(
    {
        "val_bpb": number("bits per byte of the validation split: the result", low=0),
        "ngram_bpb": number("the same of a byte n-gram model: the baseline", low=0),
        "gain_over_ngram": number("ngram_bpb − val_bpb; negative when the model is worse"),
        "documents": count("documents judged", low=1),
        "bytes": count("their UTF-8 bytes", low=1),
        "tokens": count("their tokens", low=1),
        "probe.rows": count("rows on which the look-ahead probe ran"),
        "probe.repeated_rows": count("rows asked twice, in another order"),
        "probe.tolerance_nats": number("how far an answer may move, nats of one target", low=0),
        "probe.verdict": text("what the probe found"),
        "isolation": text("what keeps the candidate from the judge's data", choices=("weak", "container")),
    },
    name="metrics/evaluate.json",
    description="What the sealed judge found; written by `evaluate`.",
)

ITERATE = DataFrameSchema(
    {
        "tag": text("name of the session: its branch is ratchet/<tag>"),
        "experiments": count("experiments beside the baseline"),
        "kept": count("of them kept"),
        "discarded": count("of them discarded"),
        "crashed": count("of them crashed"),
        "progress": count("of the kept ones those that are better, not only simpler"),
        "base_commit": text("commit of the baseline in the session's history"),
        "best_commit": text("commit of the last kept experiment, or of the baseline"),
        "baseline_val_bpb": number("bits per byte of the baseline, validation split", low=0),
        "val_bpb": number("bits per byte of the last kept one, validation split: the result", low=0),
        "gain": number("baseline_val_bpb − val_bpb"),
        "noise.sd": number("sd of val_bpb over the baseline's seeds", low=0),
        "noise.seeds": count("seeds that the baseline was trained with", low=1),
        "noise.threshold": number("a gain must be above it to be kept", low=0),
        **{
            f"test.{key}": number(f"{what}; no test when nothing was kept", low=low, nullable=True, required=False)
            for key, what, low in (
                ("baseline_bpb", "bits per byte of the baseline, test split", 0),
                ("bpb", "bits per byte of the last kept one, test split", 0),
                ("gain", "baseline_bpb − bpb", None),
                ("lower", "lower bound of its 95 % interval, paired over documents", None),
                ("upper", "upper bound of it", None),
                ("documents", "documents of the test split", 1),
            )
        },
        "isolation": text("what kept the candidates from the judge's data", choices=("weak", "container")),
        "proposer": text("who proposed"),
        "ended": text("why the session ended"),
    },
    name="metrics/iterate.json",
    description="What a research session came to; written by `iterate`.",
)

_SKILL_TEST = {
    f"test.{which}.{name}": number(f"{what}, {whose}", low=0, high=1, required=False)
    for which, whose in (("seed", "seed document"), ("best", "best document"))
    for name, what in (
        ("hard", "share of test tasks answered exactly"),
        ("contains", "share whose reply holds the answer"),
    )
} | {f"test.{which}.n": count("test tasks asked", low=1, required=False) for which in ("seed", "best")}

SKILL = DataFrameSchema(
    {
        "steps": count("training steps taken; 0 = a dry run, which has no other result"),
        "horizon_steps": count("steps that the schedule was laid out for", low=1, required=False),
        "tasks.train": count("tasks of the train split that are used; 0 = a dry run"),
        **{f"tasks.{s}": count(f"tasks of the {s} split that are used", low=1) for s in ("val", "test")},
        "best_step": count("step of the best document; 0 = the seed document", required=False),
        **{
            f"val.{which}.hard": number(f"share of validation tasks, {which} document", low=0, high=1, required=False)
            for which in ("seed", "best")
        },
        **_SKILL_TEST,
        "test.gain.hard": number("best minus seed document on the test split", required=False),
        "test.gain.p": number("chance of such a gain when nothing changed", low=0, high=1, required=False),
    },
    name="metrics/skill.json",
    description="What a skill training came to; written by `skill`. Without `test` the horizon was not reached.",
)

TEAM = DataFrameSchema(
    {
        "task": text("what the agents were trained on"),
        "epochs": count("passes over the training items"),
        "env_steps": count("joint actions rewarded", low=1),
        "updates": count("rows of data/team/history.json", low=1),
        "skipped_updates": count("optimizer steps left out, because there was nothing to learn"),
        "tokens": count("tokens generated in training", low=1),
        "train_reward.first_epoch": number("mean reward of the first epoch's updates", nullable=True),
        "train_reward.last_epoch": number("mean reward of the last epoch's updates", nullable=True),
        "held_out.items": count("held-out items; none of these keys when nothing is held out", low=1, required=False),
        "held_out.samples": count("episodes of each", low=1, required=False),
        **{
            f"held_out.{which}.{key}": number(f"{name}, {what}", required=False)
            for which, what in (
                ("untrained", "held-out return before training"),
                ("trained", "held-out return after it"),
                ("rise", "of the second over the first, paired over items"),
            )
            for key, name in (("mean", "mean"), ("low", "lower end of the 95 %"), ("high", "upper end of the 95 %"))
        },
    },
    name="metrics/team.json",
    description="What a team training came to; written by `team`.",
)

SCHEMAS: Mapping[str, DataFrameSchema] = {
    "prepare": PREPARE,
    "tokenizer": TOKENIZER,
    "pack": PACK,
    "train": TRAIN,
    "evaluate": EVALUATE,
    "iterate": ITERATE,
    "skill": SKILL,
    "team": TEAM,
}


def validate(stage: str, value: Any, *, where: Path | str | None = None) -> dict[str, Any]:
    """`value`, unchanged, when it is what `metrics/<stage>.json` may hold. Raises InputError or TableError."""
    return records.check(value, _schema(stage), where or f"metrics/{stage}.json", do=_remedy(stage))


def read(path: Path) -> dict[str, Any]:
    """The metrics in `path`; its name names the stage. Raises InputError or TableError."""
    return records.read(path, _schema(path.stem), do=_remedy(path.stem))


def carries_over(told: Mapping[str, Any]) -> bool | None:
    """Whether the gain in metrics/iterate.json shows on the test split: its interval lies above 0. None when nothing
    was kept, so nothing was tested."""
    return told["test"]["lower"] > 0 if told.get("test") else None


def _schema(stage: str) -> DataFrameSchema:
    if stage not in SCHEMAS:
        near = difflib.get_close_matches(stage, SCHEMAS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"the stages are {', '.join(SCHEMAS)}"
        raise InputError("metrics", f"no stage {stage!r} has a schema", hint)
    return SCHEMAS[stage]


def _remedy(stage: str) -> str:
    return f"run `dvc repro --force {stage}` to write it anew"
