"""Whether an answer is right: exact match, F1 of words, and "contains", after the usual normalisation of short answers.

Knows strings; refuses to know who answered. (Normalisation and F1 as in SQuAD, Rajpurkar et al. 2016.)
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence

from ratchet.loops.skill.records import Row, Scores, Task

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans(dict.fromkeys(string.punctuation, " "))


def normalise(text: str) -> str:
    """Lower case, no punctuation, no English articles, single spaces. An answer made of those alone stays as it is."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    bare = " ".join(_ARTICLES.sub(" ", plain.translate(_PUNCTUATION)).split())
    return bare or " ".join(plain.split())


def f1(said: str, answer: str) -> float:
    """Harmonic mean of precision and recall of words, 0 to 1, of normalised texts."""
    ours, theirs = said.split(), answer.split()
    common = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs)) if common else 0.0


def score(task: Task, said: str) -> Row:
    """`said` held against every answer of `task`; the best counts."""
    given = normalise(said)
    answers = [normalise(answer) for answer in task.answers]
    hard = int(given in answers)
    contains = int(any(f" {answer} " in f" {given} " for answer in answers))
    reason = "" if hard else _reason(said, task, contains)
    soft = max(f1(given, answer) for answer in answers)
    return Row(task.id, task.question, task.answers, said, hard, 1.0 if hard else soft, contains, reason)


def _reason(said: str, task: Task, contains: int) -> str:
    if not said.strip():
        return "said nothing"
    if contains:
        return f"said more than the answer {task.answers[0]!r}"
    return f"expected {task.answers[0]!r}"


def mean(rows: Sequence[Row]) -> Scores:
    """The means of `rows`. Raises ValueError for none: no rows are no score, least of all 0."""
    if not rows:
        raise ValueError("no rows to average")
    n = len(rows)
    return Scores(
        sum(row.hard for row in rows) / n, sum(row.soft for row in rows) / n, sum(row.contains for row in rows) / n, n
    )
