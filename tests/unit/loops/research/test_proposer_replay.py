"""The replay proposer: an earlier session's proposals in their order, its failures to propose included."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from made_question import ARENA, Past
from ratchet.core.errors import InputError
from ratchet.loops.research.proposers.replay import Replay, ReplayParams
from ratchet.loops.research.records import Exhausted, NoProposal, Status
from ratchet.tables import results


def session(folder: Path) -> Past:
    """A results folder as `iterate` publishes it: baseline, a keep, a reply that was no edit, a crash."""
    past = Past().with_baseline()
    past.knobs(1.9, Status.KEEP, WIDTH=9)
    past.trials.append(
        dataclasses.replace(
            past.trials[0], commit="", val_bpb=None, status=Status.CRASH, description="no proposal", parent="a" * 10,
            reason="no edit after one repair", proposer="llm", arena_sha="", diff_lines=0,
        )
    )  # fmt: skip
    past.add(ARENA.replace("= 8", "= 7"), None, Status.CRASH, description="crashed, «шире»", proposer="llm")
    trials = [dataclasses.replace(trial, commit=trial.commit[:10], parent=trial.parent[:10]) for trial in past.trials]
    results.write(folder / "results.tsv", [dataclasses.asdict(trial) for trial in trials])
    for number, trial in enumerate(past.trials):
        (folder / "experiments" / str(number)).mkdir(parents=True)
        if trial.commit:
            (folder / "experiments" / str(number) / "train.py").write_text(past.sources[trial.commit])
    return past


def replay(folder: Path) -> Replay:
    return Replay(ReplayParams(session=str(folder)))


def test_replay_gives_each_proposal_as_it_was(tmp_path: Path) -> None:
    past = session(tmp_path / "old")
    done = Past().with_baseline()
    proposer = replay(tmp_path / "old")
    first = proposer.propose(done.question(tmp_path))
    assert (first.source, first.description, first.proposer) == (
        past.sources[past.trials[1].commit], "something", "search",
    )  # fmt: skip
    with pytest.raises(NoProposal) as caught:
        proposer.propose(done.question(tmp_path, slot=1, pending=(first,)))
    assert (caught.value.what, proposer.name) == ("no edit after one repair", "llm")
    third = proposer.propose(done.question(tmp_path, slot=2, pending=(first,)))
    assert (third.source, third.description) == (ARENA.replace("= 8", "= 7"), "crashed, «шире»")
    with pytest.raises(Exhausted, match="had 3 experiments, all are replayed"):
        proposer.propose(done.question(tmp_path, slot=3))


def test_replay_counts_from_the_experiments_that_are_done(tmp_path: Path) -> None:
    past = session(tmp_path / "old")
    done = Past().with_baseline()
    done.trials += past.trials[1:3]
    assert replay(tmp_path / "old").propose(done.question(tmp_path)).description == "crashed, «шире»"


def test_replay_of_a_session_that_is_missing_or_not_whole_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no session is named"):
        Replay(ReplayParams())
    with pytest.raises(InputError):
        replay(tmp_path / "none")
    session(tmp_path / "old")
    (tmp_path / "old/experiments/1/train.py").unlink()
    with pytest.raises(InputError, match="restore the session's folder"):
        replay(tmp_path / "old").propose(Past().with_baseline().question(tmp_path))
