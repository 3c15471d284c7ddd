"""Property tests draw the same examples each time, and a busy machine fails none of them by the clock."""

from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("repeatable")
