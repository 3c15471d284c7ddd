"""How people write a cell of a research ledger: statuses, numbers, names of columns, and what they stand for.

Knows spellings; refuses to know lines and files.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache

KEEP, DISCARD, CRASH = "keep", "discard", "crash"

STATUS_WORDS = {
    KEEP: "keep kept keeper baseline base best newbest accept accepted adopt adopted win winner improve improved "
    "improvement merged promoted success better",
    DISCARD: "discard discarded reject rejected revert reverted tentative repair worse loss lost nogain neutral tie "
    "skip skipped duplicate noop drop dropped regressed regression inconclusive",
    CRASH: "crash crashed crashing oom error errored timeout timedout abort aborted killed nan diverged invalid broken "
    "unscored",
}
STATUSES = {word: status for status, words in STATUS_WORDS.items() for word in words.split()}
FAILED = frozenset({"fail", "failed", "failure"})
"""A crash where there is no score; what did not win where there is one."""
BASELINES = frozenset({"baseline", "base"})

NO_NUMBER = frozenset({"", "-", "--", "—", "–", "n/a", "na", "nan", "none", "null", "inf", "-inf", "?", "crash", "oom"})

NAMES = {
    "val_bpb": ("val_bpb", "bpb", "validation_bpb", "valbpb", "val_bits_per_byte", "bits_per_byte"),
    "status": ("status", "decision", "outcome", "verdict", "action"),
    "commit": ("commit", "commit_hash", "commit_sha", "hash", "sha", "git_commit", "revision"),
    "memory_gb": ("memory_gb", "mem_gb", "memory", "peak_memory_gb", "peak_vram_gb", "vram_gb"),
    "description": ("description", "desc", "change", "idea", "experiment", "notes", "comment", "what"),
}
"""What the published columns are called elsewhere, best first; the first two are needed."""
MEGABYTES = ("memory_mb", "mem_mb", "peak_memory_mb", "peak_vram_mb", "vram_mb")

_DECORATION = re.compile(r"[`*_~✓✔✅✗✘❌🏆⭐]+|\s+", re.UNICODE)
_UNIT = re.compile(r"\s*(?:gi?b|mi?b|bpb|bits?(?:/byte)?|s|%)$", re.IGNORECASE)
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d*)?$")
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+$")


def status_of(written: str, *, scored: bool) -> str | None:
    """keep, discard or crash for a status as somebody writes it; None for one that means none of them.

    Case, punctuation and decoration do not count. Of several words the first that is known decides: `adopted-win`.
    `scored`: whether the row has a score, which decides what `failed` means.
    """
    words = re.findall(r"[^\W\d_]+", written.casefold())
    for word in ("".join(words), *words):
        if word in FAILED:
            return DISCARD if scored else CRASH
        if word in STATUSES:
            return STATUSES[word]
    return None


@lru_cache(4096)
def is_baseline(written: str) -> bool:
    """Whether a status says that everything after it is compared with this row."""
    return bool(BASELINES & set(re.findall(r"[^\W\d_]+", written.casefold())))


@lru_cache(4096)
def number_of(written: str, *, small: bool = False) -> float | None:
    """The number in a cell; None where it says that there is none. Raises ValueError for what is neither.

    `1,024.5` has a thousands separator, `0,9979` a decimal comma, `44.0 GB` a unit, `~0.99*` decoration. In a column
    of `small` numbers `1,024` is a decimal comma too.
    """
    try:
        plain = float(written)
    except ValueError:
        return _decorated_number(written, small=small)
    return plain if math.isfinite(plain) else None


def _decorated_number(written: str, *, small: bool) -> float | None:
    said = _DECORATION.sub("", written).lstrip("≈<>=")
    if said.casefold() in NO_NUMBER:
        return None
    said = _UNIT.sub("", said)
    if _DECIMAL_COMMA.match(said) and (small or not _THOUSANDS.match(said)):
        said = said.replace(",", ".")
    elif _THOUSANDS.match(said):
        said = said.replace(",", "")
    return float(said.replace("_", ""))
