"""`ratchet skill --dry-run`: what a run would ask, before it asks."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.commands import params_of
from ratchet.commands.project import enter_project, say_next
from ratchet.loops.skill.parameters import SkillParams
from ratchet.params import echo, validate
from ratchet.settings import settings

SECTION = "skill"
REPLIES = "skill-dry-run"
"""Below the folder of runs: a dry run's replies. Asked twice, it pays once."""


def load(overrides: Sequence[str]) -> SkillParams:
    """The section `skill` with `-S skill.key=value` laid over it; defaults where there is no section."""
    return validate(params_of.read(overrides).get(SECTION) or {}, SECTION, SkillParams)


def dry_run(overrides: Sequence[str]) -> None:
    """Print every knob, the plan with calls, tokens, money and time, and take one task through every phase."""
    from ratchet.loops.skill import forecast, session

    enter_project()
    params = load(overrides)
    print("\n".join(echo(params, SECTION)))
    request = session.read_request(params)
    for line in forecast.forecast(request).lines:
        print(f"plan: {line}")
    lines = ["none, train_size is 0"]
    if request.train:
        lines = forecast.one_item(request, session.players(params, settings().runs / REPLIES, settings()))
    for line in lines:
        print(f"one task: {line}")
    say_next("ratchet skill")
