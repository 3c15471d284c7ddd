"""Stage skill: train a frozen agent's document of instructions, and test the best version once, at the end.

A killed run continues where it was committed. With train_size 0 it checks everything and asks nobody.
Refuses to know how a step is made.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

from ratchet.core import atomic
from ratchet.core.errors import InputError
from ratchet.loops.skill import publish, session
from ratchet.loops.skill.mirror import SkillMirror
from ratchet.loops.skill.parameters import SkillParams
from ratchet.loops.skill.preflight import examine_request
from ratchet.params import echo
from ratchet.report import training_dashboard
from ratchet.settings import settings
from ratchet.stage import Needs, Stage
from ratchet.train.device import used_machine


class Inputs(NamedTuple):
    """Seed documents, the user's tasks, and the manifests of tasks from packages."""

    skills: Path = Path("skills")


class Outputs(NamedTuple):
    """Document, history, edits, summary, dashboard, test answers; metrics; where they came from."""

    skill: Path = Path("data/skill")
    metrics: Path = Path("metrics/skill.json")
    provenance: Path = Path("data/skill-provenance.json")


def run(params: SkillParams, inputs: Inputs, outputs: Outputs) -> None:
    """Train to the horizon and publish to `outputs`.

    Raises InputError, InfrastructureError (exit code 3: agent or optimizer failed for good, the run goes on from its
    last step), and SystemExit 130 when somebody asked for a stop: committed, not published.
    """
    print("\n".join(echo(params, "skill")), flush=True)
    request = session.read_request(params, inputs.skills)
    if params.train_size == 0:
        dry_run(request, outputs)
        return
    published = train(request)
    picture = training_dashboard.draw(
        published.table,
        baseline=published.rows[0]["record"]["gate_score"],
        alerts=[alert.sentence for alert in published.found],
        title=publish.sentence(published, params),
    )
    publish.write(published, outputs.skill, {training_dashboard.FILE: picture})
    atomic.write_json(outputs.metrics, published.metrics)
    for alert in published.found:
        print(f"skill: {alert.line}")
    print(publish.sentence(published, params))


def train(request: session.Request) -> publish.Published:
    """Train, test when the horizon is reached, and gather the results. Raises SystemExit after a stop."""
    here = settings()
    with session.open_session(request, here) as opened:
        mirror = SkillMirror(here, opened)
        say = Log(opened.path / "skill.log", mirror)
        who = session.players(request.params, opened.path, here)
        try:
            ending = session.train(request, who, opened, say)
            stopped = ending.asked or ending.state.step == 0
            tested = (
                session.look_at_test(request, who, ending.state.best.text) if ending.finished and not stopped else None
            )
            published = None if stopped else publish.gather(request, opened, ending, tested, paid(who))
        except BaseException:
            mirror.close(exit_code=1)
            raise
        if published is None:
            mirror.close(exit_code=130)
            ways = f"continue with `ratchet run` or `ratchet resume {opened.path}`"
            print(f"skill: {ending.why}; {ways}", file=sys.stderr)
            raise SystemExit(130 if ending.asked else 2)
        mirror.close(published.found)
    return published


class Log:
    """Says a line on the terminal, keeps it in the run's own log, and lets W&B see the steps before it."""

    def __init__(self, path: Path, mirror: SkillMirror) -> None:
        self._path, self._mirror = path, mirror

    def __call__(self, line: str) -> None:
        print(line, flush=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        self._mirror.send()


def paid(who: session.Players) -> dict[str, Any]:
    """What the records of calls say was spent, failed attempts included, by role."""
    return {name: record.spent.__dict__ for name, record in who.records.items()}


def dry_run(request: session.Request, outputs: Outputs) -> None:
    """Look at everything that can be seen without a call. Raises InputError for the first thing that is wrong."""
    findings = examine_request(request, settings(), ask=False)
    for finding in findings:
        print(f"{'ok' if finding.good else '!!'}  {finding.what}: {finding.found}")
    wrong = next((finding for finding in findings if not finding.good), None)
    if wrong:
        raise InputError(f"skill: {wrong.what}", wrong.found, wrong.do or "see docs/skill.md")
    told = [f"{finding.what}: {finding.found}" for finding in findings]
    atomic.write_json(outputs.metrics, publish.dry(request, outputs.skill, told))
    print("skill: train_size is 0: everything was checked, nobody was asked, nothing is claimed")


def needs(_params: SkillParams) -> Needs:
    """The model's package and cache, endpoints, the run directory: all of them the host's."""
    return Needs(outside="it asks models, and its run directory lies with the host")


STAGE = Stage("skill", SkillParams, Inputs(), Outputs(), run, used_machine, needs)

if __name__ == "__main__":
    STAGE.main()
