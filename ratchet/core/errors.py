"""The errors a person may see, each on one line: `<where>: <what is wrong, with the value>; <what to do>`.

This module knows the shape of a message and the exit code it ends a process with, nothing of any subject.
"""

from __future__ import annotations


class RatchetError(Exception):
    """An error whose cause and remedy are known. `str(error)` is the whole message, on one line."""

    exit_code = 2

    def __init__(self, where: object, what: str, do: str) -> None:
        self.where, self.what, self.do = str(where), what, do
        super().__init__(" ".join(f"{where}: {what}; {do}".split()))


class InputError(RatchetError):
    """The input, the parameters or the state on disk are wrong. Exit code 2."""


class InfrastructureError(RatchetError):
    """The world failed, not the input: network, disk, engine, endpoint. Never scored, may be retried. Exit code 3."""

    exit_code = 3


def first_line(error: BaseException) -> str:
    """Kind and first line of an error that is not Ratchet's own."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
