"""Why a candidate gets no number.

Knows the names of the reasons; refuses to know how they are found.
"""

from __future__ import annotations

from enum import StrEnum

from ratchet.core.errors import InputError


class Reason(StrEnum):
    """What the candidate did. The value is the word that tables and messages show."""

    LOOK_AHEAD = "look-ahead"
    CHANGING_ANSWERS = "changing answers"
    NON_FINITE = "non-finite logits"
    WRONG_SHAPE = "wrong shape"
    WRONG_DTYPE = "wrong dtype"
    EXITED = "exited"
    TIMED_OUT = "timed out"
    OUT_OF_MEMORY = "out of memory"
    TOO_MUCH_OUTPUT = "too much output"
    PROTOCOL = "broken protocol"
    INVALID_RESULTS = "invalid results"
    """Of its training: not the files, the source or the steps that were asked for (claims.py)."""


class Refused(InputError):  # noqa: N818  (a verdict more than an error)
    """The judge gives no number for this model. `reason` says why in a word, `detail` with the values."""

    def __init__(self, reason: Reason, detail: str, do: str) -> None:
        self.reason, self.detail = reason, detail
        super().__init__("judge", f"refused, {reason}: {detail}", do)
