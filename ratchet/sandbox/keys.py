"""No key enters a job but those that it names: what carries another is refused before anything starts.

Refuses to know how a job is held.
"""

from __future__ import annotations

from ratchet.core.errors import InputError
from ratchet.sandbox.job import Job
from ratchet.settings import is_key, key_values


def refuse_keys(job: Job) -> None:
    """Raise InputError when the environment of `job` has a name like a key's, or it or the command holds a key's value.

    Variables that `job.keys` names may hold one; the command never. The value is never named: it may be the key.
    """
    values = key_values()
    for name, value in job.environment.items():
        if name not in job.keys and (is_key(name) or any(key in value for key in values)):
            raise InputError(
                job.name, f"its environment would carry a key in {name}", "a job gets no key; leave it out"
            )
    for number, word in enumerate(job.argv):
        if any(key in word for key in values):
            raise InputError(job.name, f"word {number} of its command holds a key", "a job gets no key; leave it out")
