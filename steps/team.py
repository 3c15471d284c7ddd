"""Stage team: train agents that speak in turn on one task for one reward, and look at held-out items before and after.

A killed run continues where it was committed. Refuses to know how a step is made.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ratchet.core import atomic
from ratchet.loops.team import publish, session
from ratchet.loops.team.parameters import SECTION, TeamParams
from ratchet.params import echo
from ratchet.settings import settings
from ratchet.stage import Needs, Stage
from ratchet.train.device import used_machine


class Inputs(NamedTuple):
    """Rewards, tasks and items of the user's own."""

    own: Path = Path("team")


class Outputs(NamedTuple):
    """History, samples, summary, agents; what took how long; metrics; where they came from."""

    team: Path = Path("data/team")
    timing: Path = Path("data/team-timing.json")
    metrics: Path = Path("metrics/team.json")
    provenance: Path = Path("data/team-provenance.json")


def run(params: TeamParams, _inputs: Inputs, outputs: Outputs) -> None:
    """Train to the last epoch and publish to `outputs`.

    Raises InputError (what was committed stays), and SystemExit after a stop: committed, not published.
    """
    print("\n".join(echo(params, SECTION)), flush=True)
    here = settings()
    made = session.from_params(params, here)
    with session.open_session(made, here) as opened:
        ending = session.Driver(made, opened, here).drive()
        if ending.exit_code:
            session.say_stopped(ending, opened)
            raise SystemExit(ending.exit_code)
        published = publish.gather(made, ending)
        publish.write(published, outputs.team, made.team if params.publish_agents else None)
    atomic.write_json(outputs.timing, published.timing)
    atomic.write_json(outputs.metrics, published.metrics)
    for alert in published.found:
        print(f"team: {alert.line}")
    print(publish.sentence(published, params))


def needs(_params: TeamParams) -> Needs:
    """The model's package or folder, and the run directory: all of them the host's."""
    return Needs(outside="its models and its run directory lie with the host")


STAGE = Stage("team", TeamParams, Inputs(), Outputs(), run, used_machine, needs)

if __name__ == "__main__":
    STAGE.main()
